from minamp.autocasting.region import *
from minamp.autocasting.region import autocast
