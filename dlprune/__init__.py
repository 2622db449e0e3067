"""Prune image classifiers in ONNX files with the operators of MVTec HALCON."""

import importlib
from typing import TYPE_CHECKING

from . import errors
from .devices import (
    get_dl_device_param,
    get_dl_device_param_s,
    query_available_dl_devices,
    query_available_dl_devices_s,
)
from .dictionary import (
    as_python_dict,
    as_python_dict_s,
    copy_dict,
    create_dict,
    dict_to_json,
    from_python_dict,
    get_dict_object,
    get_dict_param,
    get_dict_param_s,
    get_dict_tuple,
    get_dict_tuple_s,
    json_to_dict,
    read_dict,
    remove_dict_key,
    set_dict_object,
    set_dict_tuple,
    set_dict_tuple_at,
    write_dict,
)
from .errors import HError, HInteropError, HOperatorError, HTupleConversionError, get_error_text
from .handle import HHandle
from .image import HObject, himage_as_numpy_array, himage_from_numpy_array
from .serialization import (
    deserialize_handle,
    serialize_handle,
    serialized_item_as_bytes,
    serialized_item_from_bytes,
)
from .tuples import clear_handle, tuple_is_valid_handle, tuple_is_valid_handle_s, tuple_sem_type

if TYPE_CHECKING:  # at run time __getattr__ brings them
    from .demo import demo_model_file, demo_samples
    from .deployment.operators import optimize_dl_model_for_inference
    from .hparams import get_pruning_hparams, parse_pruning_hparams
    from .imageoperators import read_image, write_image
    from .insight import compare_dl_pruning_scores, get_dl_pruning_sensitivity
    from .model import (
        apply_dl_model,
        clear_dl_model,
        deserialize_dl_model,
        get_dl_model_param,
        get_dl_model_param_s,
        read_dl_model,
        serialize_dl_model,
        set_dl_model_param,
        write_dl_model,
    )
    from .parallel.operators import add_dl_pruning_batches, evaluate_dl_model_batches
    from .procedures.dataset import (
        find_dl_samples,
        gen_dl_samples,
        preprocess_dl_dataset,
        read_dl_dataset_classification,
        read_dl_samples,
        split_dl_dataset,
    )
    from .procedures.evaluation import evaluate_dl_model
    from .procedures.preprocessing import (
        create_dl_preprocess_param,
        create_dl_preprocess_param_from_model,
        gen_dl_samples_from_images,
        preprocess_dl_samples,
    )
    from .procedures.training import create_dl_train_param, train_dl_model
    from .pruning import (
        add_dl_pruning_batch,
        create_dl_pruning,
        gen_dl_pruned_model,
        get_dl_pruning_layer_info,
        get_dl_pruning_param,
        get_dl_pruning_param_s,
        merge_dl_pruning,
        set_dl_pruning_param,
    )
    from .report.operators import write_dl_pruning_report
    from .sparsity.operators import get_dl_pruning_masks, update_dl_pruning_masks
    from .sweep.operators import sweep_dl_pruning
    from .training.operators import finetune_dl_model, prune_and_finetune_dl_model, train_dl_model_batch
    from .workflow import prune_dl_model

__version__ = "0.1.0"

__all__ = [
    # Errors
    "HError",
    "HInteropError",
    "HOperatorError",
    "HTupleConversionError",
    "errors",
    "get_error_text",
    # Handles and tuples
    "HHandle",
    "clear_handle",
    "deserialize_handle",
    "serialize_handle",
    "serialized_item_as_bytes",
    "serialized_item_from_bytes",
    "tuple_is_valid_handle",
    "tuple_is_valid_handle_s",
    "tuple_sem_type",
    # Images
    "HObject",
    "himage_as_numpy_array",
    "himage_from_numpy_array",
    "read_image",
    "write_image",
    # Dictionaries
    "as_python_dict",
    "as_python_dict_s",
    "copy_dict",
    "create_dict",
    "dict_to_json",
    "from_python_dict",
    "get_dict_object",
    "get_dict_param",
    "get_dict_param_s",
    "get_dict_tuple",
    "get_dict_tuple_s",
    "json_to_dict",
    "read_dict",
    "remove_dict_key",
    "set_dict_object",
    "set_dict_tuple",
    "set_dict_tuple_at",
    "write_dict",
    # Samples and datasets
    "create_dl_preprocess_param",
    "create_dl_preprocess_param_from_model",
    "find_dl_samples",
    "gen_dl_samples",
    "gen_dl_samples_from_images",
    "preprocess_dl_dataset",
    "preprocess_dl_samples",
    "read_dl_dataset_classification",
    "read_dl_samples",
    "split_dl_dataset",
    # Models
    "apply_dl_model",
    "clear_dl_model",
    "deserialize_dl_model",
    "evaluate_dl_model_batches",
    "get_dl_model_param",
    "get_dl_model_param_s",
    "read_dl_model",
    "serialize_dl_model",
    "set_dl_model_param",
    "write_dl_model",
    # Pruning
    "add_dl_pruning_batch",
    "add_dl_pruning_batches",
    "compare_dl_pruning_scores",
    "create_dl_pruning",
    "gen_dl_pruned_model",
    "get_dl_pruning_layer_info",
    "get_dl_pruning_masks",
    "get_dl_pruning_param",
    "get_dl_pruning_param_s",
    "get_dl_pruning_sensitivity",
    "get_pruning_hparams",
    "merge_dl_pruning",
    "parse_pruning_hparams",
    "prune_dl_model",
    "set_dl_pruning_param",
    "sweep_dl_pruning",
    "update_dl_pruning_masks",
    "write_dl_pruning_report",
    # Training and evaluation
    "create_dl_train_param",
    "evaluate_dl_model",
    "train_dl_model",
    "finetune_dl_model",
    "prune_and_finetune_dl_model",
    "train_dl_model_batch",
    # Embedded example
    "demo_model_file",
    "demo_samples",
    # Deployment
    "optimize_dl_model_for_inference",
    "get_dl_device_param",
    "get_dl_device_param_s",
    "query_available_dl_devices",
    "query_available_dl_devices_s",
]

# Modules that work on graphs are imported at the first use of one of their operators: ONNX's graph library takes longer
# to import than all the rest.
_LATE = (
    "dlprune.model",
    "dlprune.pruning",
    "dlprune.workflow",
    "dlprune.parallel.operators",
    "dlprune.hparams",
    "dlprune.sparsity.operators",
    "dlprune.insight",
    "dlprune.sweep.operators",
    "dlprune.training.operators",
    "dlprune.report.operators",
    "dlprune.demo",
    "dlprune.imageoperators",
    "dlprune.procedures.preprocessing",
    "dlprune.procedures.dataset",
    "dlprune.procedures.training",
    "dlprune.procedures.evaluation",
    "dlprune.deployment.operators",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for module_name in _LATE:
            module = importlib.import_module(module_name)
            if hasattr(module, name):
                value: object = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
