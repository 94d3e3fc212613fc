"""PyTorch's own op lists, as data, each family with the reason for its precision.

The rule behind the rows is short.  *Halves may be multiplied, not accumulated*: a
matrix unit multiplies half by half and sums in float32 inside, so a product loses only
the rounding of its inputs; a sum, a norm, a loss or a softmax has a result that can
leave the range of a half, or loses its small terms, so its inputs go up to float32.
Everything that is on no list runs in the dtype it is given.

CUDA's and the CPU's lists differ much.  On CUDA a cast costs little beside the op, and
float32 is asked for wherever a half could go wrong.  On the CPU the float32 list is
above all the list of ops that had no half kernel, and softmax or exp run in the dtype
they are given: the ``safe`` lists (``safe_lists.py``) close that gap.

The tables are the union of what PyTorch 2.6 to 2.14 lists.  ``torch_lists()`` keeps the
rows that the running PyTorch has registered, which makes them exactly its own; a test
names what a new PyTorch has added or dropped.
"""

from __future__ import annotations

import functools

import torch

from minamp.policy.op_lists import Category, OpLists, Row, family, op_lists

CUDA: tuple[Row, ...] = (
    *family(
        Category.LOWER_PRECISION_FP,
        "a matrix product: half times half, summed in float32 inside the matrix unit",
        "addbmm addmm addmv addr baddbmm bmm chain_matmul einsum linalg_multi_dot "
        "linalg_vecdot linear matmul mm mv",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "a convolution: a matrix product over patches",
        "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc "
        "conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution "
        "cudnn_convolution cudnn_convolution_transpose",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "attention: two matrix products; its kernels keep the softmax in float32",
        "_scaled_dot_product_flash_attention scaled_dot_product_attention",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "a recurrent cell: two matrix products, then gates bounded by 1",
        "_cudnn_rnn _thnn_fused_gru_cell _thnn_fused_lstm_cell gru_cell lstm_cell "
        "rnn_relu_cell rnn_tanh_cell",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "pointwise with a weight: the weight follows its half input",
        "prelu",
    ),
    *family(
        Category.FP32,
        "steep: a small rounding of the input is a large error of the result, or the "
        "result leaves the range of a half (exp(12) is past 65504)",
        "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow.Scalar "
        "pow.Tensor_Scalar pow.Tensor_Tensor reciprocal rsqrt sinh softplus tan",
    ),
    *family(
        Category.FP32,
        "normalisation: a sum of squares, which overflows at 256 * 256",
        "cosine_similarity frobenius_norm.dim group_norm layer_norm native_layer_norm "
        "nuclear_norm nuclear_norm.dim renorm rms_norm",
    ),
    *family(
        Category.FP32,
        "a loss: a sum over the batch, and where the small differences live",
        "binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss "
        "huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss "
        "multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss smooth_l1_loss "
        "soft_margin_loss triplet_margin_loss",
    ),
    *family(
        Category.FP32,
        "a distance or a log of a sum: many terms accumulate into one number",
        "cdist dist logsumexp pdist",
    ),
    *family(
        Category.FP32,
        "interpolation: positions up to the image size need more than 11 bits",
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d "
        "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d "
        "upsample_nearest3d upsample_trilinear3d",
    ),
    *family(
        Category.FP32,
        "an eigenvalue method: many dependent steps, each adding its rounding",
        "linalg_matrix_sqrth",
    ),
    *family(
        Category.FP32_SET_OPT_DTYPE,
        "a reduction with a dtype argument: it reads halves and sums in float32",
        "cumprod cumprod.dimname cumsum cumsum.dimname linalg_matrix_norm "
        "linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.Dimname "
        "log_softmax.int prod prod.dim_Dimname prod.dim_int softmax.Dimname "
        "softmax.int sum sum.dim_DimnameList sum.dim_IntList",
    ),
    *family(
        Category.FP32_APPEND_DTYPE,
        "a norm whose overload has no dtype argument: the one that has is called",
        "norm.Scalar norm.ScalarOpt_dim norm.names_ScalarOpt_dim",
    ),
    *family(
        Category.PROMOTE,
        "takes tensors of one dtype only: the widest of them decides",
        "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add "
        "tensordot vdot",
    ),
    *family(
        Category.BANNED,
        "its input is a probability: a half sigmoid rounds to 0 or 1, whose log is "
        "infinite; take binary_cross_entropy_with_logits",
        "binary_cross_entropy",
    ),
)

CPU: tuple[Row, ...] = (
    *family(
        Category.LOWER_PRECISION_FP,
        "a matrix product: half times half, summed in float32 inside the matrix unit",
        "_addmm_activation addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "a convolution: a matrix product over patches",
        "_convolution.deprecated conv1d conv1d.padding conv2d conv2d.padding conv3d "
        "conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input "
        "conv_transpose3d.input",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "attention: two matrix products; its kernels keep the softmax in float32",
        "_native_multi_head_attention scaled_dot_product_attention",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "a recurrent layer: matrix products, then gates bounded by 1",
        "mkldnn_rnn_layer",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "pointwise with a weight: the weight follows its half input",
        "prelu",
    ),
    *family(
        Category.FP32,
        "a loss: a sum over the batch, and where the small differences live",
        "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss "
        "cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor hinge_embedding_loss "
        "huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss "
        "multilabel_margin_loss multilabel_margin_loss_forward nll_loss nll_loss2d "
        "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss",
    ),
    *family(
        Category.FP32,
        "many terms accumulate into one number",
        "cdist prod prod.dim_Dimname prod.dim_int trace",
    ),
    *family(
        Category.FP32,
        "a factorisation or a solver: LAPACK has no halves, and small pivots need bits",
        "_lu_with_info cholesky cholesky_inverse cholesky_solve geqrf inverse "
        "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig "
        "linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product "
        "linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank "
        "linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor "
        "linalg_matrix_rank.tol_tensor linalg_matrix_sqrth linalg_qr linalg_solve "
        "linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve orgqr "
        "ormqr pinverse qr svd triangular_solve",
    ),
    *family(
        Category.FP32,
        "a Fourier transform: a sum over the whole signal, and no half kernel",
        "fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft "
        "fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn stft "
        "stft.center",
    ),
    *family(
        Category.FP32,
        "makes a complex number, whose parts are float32",
        "polar view_as_complex",
    ),
    *family(
        Category.FP32,
        "positions up to the image size need more than 11 bits",
        "_grid_sampler_2d_cpu_fallback grid_sampler grid_sampler_2d grid_sampler_3d",
    ),
    *family(
        Category.FP32,
        "interpolates between sorted values: neighbours must stay apart",
        "nanquantile nanquantile.scalar quantile quantile.scalar",
    ),
    *family(
        Category.FP32,
        "pooling or padding that had no half kernel on the CPU",
        "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d "
        "fractional_max_pool3d max_pool3d max_unpool2d max_unpool3d reflection_pad1d "
        "reflection_pad2d replication_pad1d replication_pad2d replication_pad3d",
    ),
    *family(
        Category.FP32,
        "imitates integers: the grid must be finer than the integers it rounds to",
        "fake_quantize_per_tensor_affine",
    ),
    *family(
        Category.PROMOTE,
        "takes tensors of one dtype only: the widest of them decides",
        "cat index_copy index_copy.dimname stack",
    ),
)

# Apple's GPU: CUDA's rows, less what PyTorch left out there, and two of its own.
MPS: tuple[Row, ...] = (
    *CUDA,
    *family(
        Category.LOWER_PRECISION_FP,
        "a convolution: a matrix product over patches",
        "_mps_convolution",
    ),
    *family(
        Category.FP32,
        "normalisation: a sum of squares, which overflows at 256 * 256",
        "batch_norm",
    ),
)

# The key under which the dispatcher keeps PyTorch's own autocast kernels.
AUTOCAST_KEYS = {
    "cpu": "AutocastCPU",
    "cuda": "AutocastCUDA",
    "mps": "AutocastMPS",
    "mtia": "AutocastMTIA",
    "xpu": "AutocastXPU",
}


def registered_ops(device_type: str) -> frozenset[str]:
    """The ops that the running PyTorch's own autocast lists for ``device_type``."""
    # Private: PyTorch has no public way to ask the dispatcher what it registered.
    query = torch._C._dispatch_get_registrations_for_dispatch_key
    try:
        names = query(AUTOCAST_KEYS[device_type])
    except RuntimeError:  # an older PyTorch without autocast on this device type
        names = []
    return frozenset(name.removeprefix("aten::") for name in names)


@functools.cache
def torch_lists() -> OpLists:
    """The lists of the running PyTorch, for every device type it autocasts."""
    rows = {"cpu": CPU, "cuda": CUDA, "mps": MPS, "mtia": CUDA, "xpu": CUDA}
    here = {device_type: registered_ops(device_type) for device_type in rows}
    return op_lists(
        "torch",
        {d: [row for row in rows[d] if row.op in here[d]] for d in rows if here[d]},
    )
