"""Where minamp means to differ from torch.amp, why, and which test says so.

One row a difference. Its test, in test_intended_differences.py, carries the marker
`intended_difference(name)`: it passes for minamp, and `--implementation torch` expects
it to fail, so a row that is no longer true of torch is noticed. Everything that is not
in this table is the same in both, or a bug.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """What torch.amp does, what minamp does instead, and the reason."""

    name: str
    torch_does: str
    minamp_does: str
    reason: str

    @property
    def test(self) -> str:
        """The test that asserts it, in test_intended_differences.py."""
        return f"test_{self.name}"


SCALER = (
    Difference(
        "the_scale_never_becomes_zero",
        "halves the scale at every overflow, until it is 0.",
        "stops at the smallest normal float32 number, or at `min_scale`.",
        "The gradients are divided by the scale. Once it is 0 every later step is NaN "
        "and skipped, and the run never comes back.",
    ),
    Difference(
        "a_loss_that_is_nan_by_itself_keeps_the_scale",
        "backs off, whatever the cause.",
        "skips the step and leaves the scale alone.",
        "A loss that is NaN before it is multiplied cannot be cured by a smaller "
        "scale; a few such batches would sink it for nothing.",
    ),
    Difference(
        "an_optimizer_without_gradients_steps_without_complaint",
        "raises AssertionError: no inf checks were recorded.",
        "does nothing for that optimizer.",
        "A frozen branch or an unused generator gets no gradient in some iterations; "
        "there is nothing to unscale, and nothing that could have overflowed.",
    ),
    Difference(
        "an_abandoned_iteration_may_still_call_update",
        "raises AssertionError: no inf checks were recorded prior to update.",
        "leaves the scale as it is.",
        "A loop that drops a bad batch still runs its last line; with no step made, "
        "there is nothing to learn from.",
    ),
    Difference(
        "a_closure_given_by_position_runs_on_unscaled_gradients",
        "hands it on, so the optimizer steps on gradients that are still scaled.",
        "unscales and checks after each evaluation of the closure.",
        "The step would be too large by the factor of the scale, in silence.",
    ),
    Difference(
        "a_closure_given_by_keyword_is_run",
        "raises RuntimeError: closures are not supported.",
        "unscales and checks after each evaluation of the closure.",
        "LBFGS and other optimizers that look at the loss again need it.",
    ),
    Difference(
        "a_backward_pass_after_unscale_is_refused",
        "adds scaled gradients to unscaled ones.",
        "raises RuntimeError in that backward pass.",
        "The sum has no meaning, and the training goes on with it.",
    ),
    Difference(
        "a_parameter_in_two_optimizers_is_not_unscaled_twice",
        "divides its gradient by the scale once for each optimizer.",
        "raises RuntimeError and says which order is right.",
        "The second optimizer would step on a gradient that is far too small.",
    ),
    Difference(
        "an_update_between_two_steps_is_refused",
        "divides the second optimizer's gradients by the new scale.",
        "raises RuntimeError at the second step.",
        "They were made with the old one, so they come out too small or too large.",
    ),
    Difference(
        "settings_that_make_no_sense_are_refused",
        "takes back-off 0 or below, interval 0, and a first scale of inf or NaN.",
        "raises an error that is both ValueError and AssertionError.",
        "They make the scale 0, negative or NaN within a few steps.",
    ),
    Difference(
        "a_new_scale_that_makes_no_sense_is_refused",
        "takes `update(0.0)` and `update(nan)`.",
        "raises the same error, and keeps the scale.",
        "No later step could be taken.",
    ),
    Difference(
        "a_half_loss_vector_does_not_overflow_when_scaled",
        "multiplies it in half: 2 * 65536 is inf in fp16.",
        "multiplies it in float32.",
        "The loss was fine; only its product with the scale is not. (0-d losses are "
        "promoted by PyTorch itself.)",
    ),
    Difference(
        "a_mapping_or_namedtuple_of_losses_keeps_its_kind",
        "fails on a namedtuple, and iterates over the keys of a dict.",
        "scales each tensor inside, and gives back the same kind of container.",
        "Models return them.",
    ),
    Difference(
        "a_loaded_scaler_may_unscale_before_it_scales",
        "raises AssertionError: the scale is not there yet.",
        "makes the scale from the loaded state.",
        "A run that is resumed between backward and step has gradients to unscale.",
    ),
)

AUTOCAST = (
    Difference(
        "one_region_entered_twice_leaves_as_it_came",
        "overwrites what it remembered; autocast stays on for the whole process.",
        "remembers each entry apart.",
        "A region kept in an object may be entered by a function that is called "
        "inside it.",
    ),
    Difference(
        "a_decorated_generator_runs_in_its_region",
        "casts nothing: only the call is in the region, and the body runs later.",
        "enters the region whenever the body runs, and leaves it at each yield.",
        "What is written inside the decorated function is meant.",
    ),
    Difference(
        "a_decorated_coroutine_runs_in_its_region",
        "casts nothing, for the same reason.",
        "enters the region whenever the body runs, and leaves it at each await.",
        "As for generators.",
    ),
    Difference(
        "a_weight_changed_inside_a_region_is_seen_changed",
        "goes on with the copy of the old weight until the region ends.",
        "notices the new version of the weight and casts it again.",
        "With `optimizer.step()` inside the region, training stands still without a "
        "word.",
    ),
    Difference(
        "a_weight_has_one_copy_for_each_dtype",
        "takes the bf16 copy in an fp16 region inside, and fails.",
        "keeps one copy for each dtype.",
        "The cache must never change what an op computes.",
    ),
    Difference(
        "a_model_can_be_traced_in_a_region",
        "fails: a cached cast cannot be inserted as a constant.",
        "casts inside the trace.",
        "`torch.jit.trace` is used to export models, with autocast on.",
    ),
)

DIFFERENCES = SCALER + AUTOCAST


def by_name(name: str) -> Difference:
    for difference in DIFFERENCES:
        if difference.name == name:
            return difference
    raise LookupError(
        f"{name!r} is not in the table of tests/intended_differences.py: add a row "
        "that says what torch.amp does, what minamp does, and why."
    )
