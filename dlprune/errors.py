"""Error codes, their texts, and the exceptions that carry them.

The numbers and the names of the constants are those of HALCON, so that scripts which compare codes keep working;
the texts are our own.
"""

from __future__ import annotations

import operator
from typing import Final

# Wrong type, wrong value, wrong number of values of control parameter 1 … 20.
(
    H_ERR_WIPT1, H_ERR_WIPT2, H_ERR_WIPT3, H_ERR_WIPT4, H_ERR_WIPT5, H_ERR_WIPT6, H_ERR_WIPT7, H_ERR_WIPT8,
    H_ERR_WIPT9, H_ERR_WIPT10, H_ERR_WIPT11, H_ERR_WIPT12, H_ERR_WIPT13, H_ERR_WIPT14, H_ERR_WIPT15, H_ERR_WIPT16,
    H_ERR_WIPT17, H_ERR_WIPT18, H_ERR_WIPT19, H_ERR_WIPT20,
) = range(1201, 1221)  # fmt: skip
(
    H_ERR_WIPV1, H_ERR_WIPV2, H_ERR_WIPV3, H_ERR_WIPV4, H_ERR_WIPV5, H_ERR_WIPV6, H_ERR_WIPV7, H_ERR_WIPV8,
    H_ERR_WIPV9, H_ERR_WIPV10, H_ERR_WIPV11, H_ERR_WIPV12, H_ERR_WIPV13, H_ERR_WIPV14, H_ERR_WIPV15, H_ERR_WIPV16,
    H_ERR_WIPV17, H_ERR_WIPV18, H_ERR_WIPV19, H_ERR_WIPV20,
) = range(1301, 1321)  # fmt: skip
(
    H_ERR_WIPN1, H_ERR_WIPN2, H_ERR_WIPN3, H_ERR_WIPN4, H_ERR_WIPN5, H_ERR_WIPN6, H_ERR_WIPN7, H_ERR_WIPN8,
    H_ERR_WIPN9, H_ERR_WIPN10, H_ERR_WIPN11, H_ERR_WIPN12, H_ERR_WIPN13, H_ERR_WIPN14, H_ERR_WIPN15, H_ERR_WIPN16,
    H_ERR_WIPN17, H_ERR_WIPN18, H_ERR_WIPN19, H_ERR_WIPN20,
) = range(1401, 1421)  # fmt: skip

H_ERR_WRONG_HANDLE_TYPE: Final = 2404
H_ERR_HANDLE_NULL: Final = 2453
H_ERR_HANDLE_CLEARED: Final = 2454
H_ERR_HANDLE_NOSER: Final = 2455
H_ERR_HANDLE_CYCLES: Final = 2456
H_ERR_WT_CTRL_EXPECTED: Final = 2460
H_ERR_WT_ICONIC_EXPECTED: Final = 2461
H_ERR_DICT_KEY: Final = 2894
H_ERR_DICT_INVALID_INDEX: Final = 2897
H_ERR_FILE_WR: Final = 3142
H_ERR_FNF: Final = 5200
H_ERR_DL_INPUTS_MISSING: Final = 7783
H_ERR_DL_INPUT_WRONG_BS: Final = 7784
H_ERR_DL_INVALID_OUTPUT: Final = 7787
H_ERR_DL_PARAM_NOT_AVAILABLE: Final = 7788
H_ERR_DL_INPUT_WRONG_TYPE: Final = 7790
H_ERR_DL_INPUT_WRONG_VALUES: Final = 7791
H_ERR_DL_CLASS_IDS_NOT_UNIQUE: Final = 7792
H_ERR_DL_CLASS_IDS_INVALID: Final = 7793
H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER: Final = 7800
H_ERR_DL_READ_ONNX: Final = 7801
H_ERR_DL_WRITE_ONNX: Final = 7803
H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM: Final = 7911
H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED: Final = 7912
H_ERR_DL_MODEL_RUNTIME: Final = 7913
H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE: Final = 7914
H_ERR_DL_PRUNING_WRONG_DATA: Final = 7980
H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN: Final = 7981
H_ERR_NO_SERIALIZED_ITEM: Final = 9580
H_ERR_END_OF_FILE: Final = 9581

_TEXTS: Final[dict[int, str]] = {
    **{H_ERR_WIPT1 + i: f"Control parameter {i + 1} has the wrong type" for i in range(20)},
    **{H_ERR_WIPV1 + i: f"Control parameter {i + 1} has an invalid value" for i in range(20)},
    **{H_ERR_WIPN1 + i: f"Control parameter {i + 1} has the wrong number of values" for i in range(20)},
    H_ERR_WRONG_HANDLE_TYPE: "The handle is of another type than the operator needs",
    H_ERR_HANDLE_NULL: "The handle is empty",
    H_ERR_HANDLE_CLEARED: "The handle has been cleared",
    H_ERR_HANDLE_NOSER: "Handles of this type cannot be serialized",
    H_ERR_HANDLE_CYCLES: "The dictionaries contain each other in a circle",
    H_ERR_WT_CTRL_EXPECTED: "The key holds an object, not a tuple",
    H_ERR_WT_ICONIC_EXPECTED: "The key holds a tuple, not an object",
    H_ERR_DICT_KEY: "The dictionary has no such key",
    H_ERR_DICT_INVALID_INDEX: "The index lies outside the tuple in the dictionary",
    H_ERR_FILE_WR: "The file cannot be written",
    H_ERR_FNF: "The file was not found",
    H_ERR_DL_INPUTS_MISSING: "A sample lacks an entry that the model needs",
    H_ERR_DL_INPUT_WRONG_BS: "The number of samples differs from the batch size of the model",
    H_ERR_DL_INVALID_OUTPUT: "The model has no such output or layer",
    H_ERR_DL_PARAM_NOT_AVAILABLE: "The parameter is not available here",
    H_ERR_DL_INPUT_WRONG_TYPE: "A sample entry has the wrong type",
    H_ERR_DL_INPUT_WRONG_VALUES: "A sample entry has an invalid value",
    H_ERR_DL_CLASS_IDS_NOT_UNIQUE: "Class ids must differ from each other",
    H_ERR_DL_CLASS_IDS_INVALID: "A class id is invalid",
    H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER: "The number of training samples differs from batch size × multiplier",
    H_ERR_DL_READ_ONNX: "The ONNX model cannot be read",
    H_ERR_DL_WRITE_ONNX: "The ONNX model cannot be written",
    H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM: "The generic parameter is unknown",
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED: "The operator does not support this model",
    H_ERR_DL_MODEL_RUNTIME: "The requested runtime is not available",
    H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE: "The value of the generic parameter is not supported",
    H_ERR_DL_PRUNING_WRONG_DATA: "The pruning data does not fit the model",
    H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN: "The architecture of the model cannot be pruned",
    H_ERR_NO_SERIALIZED_ITEM: "The data is not a valid serialized item",
    H_ERR_END_OF_FILE: "The serialized item ends too early",
}


class HError(Exception):
    """Base of all exceptions that dlprune raises on purpose.

    Parameters: `message`, the text that str() returns.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class HOperatorError(HError):
    """An operator could not do its work; `error_code` tells scripts why, the extended message tells people.

    Parameters: `error_code` (int, one of the H_ERR_* constants); `extended_error_message` (what was given, what was
    expected, what to do); `extended_error_code` (int, 0 if there is none). `message` is the general text of the code.

    Example:
        >>> error = HOperatorError(H_ERR_FNF, "No file 'a.onnx'")
        >>> error.error_code, str(error)
        (5200, "The file was not found: No file 'a.onnx'")
    """

    def __init__(self, error_code: int, extended_error_message: str = "", extended_error_code: int = 0) -> None:
        super().__init__(get_error_text(error_code))
        self.args = (error_code, extended_error_message, extended_error_code)  # what pickle and copy call us with
        self.error_code = error_code
        self.extended_error_code = extended_error_code
        self.extended_error_message = extended_error_message

    def __str__(self) -> str:
        return f"{self.message}: {self.extended_error_message}" if self.extended_error_message else self.message


class HTupleConversionError(HError):
    """A Python value cannot become a HALCON tuple, or a tuple cannot become the scalar that was asked for."""


class HInteropError(HError):
    """An array cannot become an image object, or the other way round."""


def get_error_text(error_code: int) -> str:
    """Return the text that belongs to an error code.

    Parameters: `error_code` (int). Returns one sentence without a full stop; for a code that dlprune does not use,
    the sentence says so. Raises HTupleConversionError if the code is not an integer.
    Source: HALCON operator get_error_text, with our own texts.

    Example:
        >>> get_error_text(5200)
        'The file was not found'
    """
    try:
        code = operator.index(error_code)  # NumPy integers too
    except TypeError:
        raise HTupleConversionError(f"error_code must be an integer, not {error_code!r}") from None
    if isinstance(error_code, bool):
        raise HTupleConversionError(f"error_code must be an integer, not {error_code!r}")
    return _TEXTS.get(code, f"No text is known for error code {code}")
