"""Everything that a user can do wrong, and what this library refuses to do.

    AutoWidthError
    ├── TraceError          the model cannot be read
    │   └── InputError      the example inputs do not fit the model
    ├── AxisError           an axis that does not exist, is frozen, or has no such unit
    ├── PlanError           a plan that does not fit the model, or cannot be read
    ├── SurgeryError        the smaller model cannot be built
    │   └── VerificationError   it was built, and its outputs differ: it is not returned
    ├── PenaltyError        a penalty that makes no sense, or names no axis
    ├── OptimizerError      an optimizer whose state cannot be followed
    ├── StoreError          a file that cannot be written, read or trusted
    ├── DataError           a data set that is missing, damaged or not what it should be
    ├── RecipeError         an unknown recipe, or a field that it does not have
    ├── TrainError          a training run that cannot start, go on or be read
    └── MissingExtraError   an optional dependency is needed and not installed

    AutoWidthWarning        it works, but hardly as it is meant: a UserWarning

A message says what happened, where, why, and what to do next. User mistakes raise one of these; a mistake of this
library is an `AssertionError`.
"""

from __future__ import annotations


class AutoWidthError(Exception):
    """The parent of every error that this library raises on purpose.

    Example:
        >>> import autowidth as aw
        >>> issubclass(aw.AutoWidthError, Exception)
        True
    """


class TraceError(AutoWidthError):
    """The model cannot be exported, or is in a form (meta, compiled, wrapped) that hides its parameters."""


class InputError(TraceError):
    """The example inputs do not fit the model."""


class AxisError(AutoWidthError):
    """An axis that does not exist or is frozen, or a unit out of range."""


class PlanError(AutoWidthError):
    """A plan that does not fit the model, asks for nothing, or cannot be read."""


class SurgeryError(AutoWidthError):
    """The smaller model cannot be built from this plan."""


class VerificationError(SurgeryError):
    """The smaller model was built, but its outputs are not those of the original."""


class PenaltyError(AutoWidthError):
    """A penalty whose settings make no sense, or whose patterns fit no axis."""


class OptimizerError(AutoWidthError):
    """The state of this optimizer cannot be cut along with the parameters."""


class StoreError(AutoWidthError):
    """A file that cannot be written, read, or trusted."""


class RecipeError(AutoWidthError):
    """An unknown recipe, a field that it does not have, or a value that the field does not take."""


class TrainError(AutoWidthError):
    """A training run that cannot start, go on or be read."""


class DataError(AutoWidthError):
    """A data set that is missing, damaged or not what it should be."""


class MissingExtraError(AutoWidthError):
    """An optional dependency is needed for this and is not installed."""


class AutoWidthWarning(UserWarning):
    """Something that works, but hardly as it is meant: a penalty far too strong, an axis about to die whole.

    Example:
        >>> import warnings, autowidth as aw
        >>> warnings.simplefilter("error", aw.AutoWidthWarning)  # stop at the first one
    """
