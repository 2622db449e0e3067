"""The pruning operators: create, set, get, add a batch, generate the pruned model."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import numpy as np

from .analysis import analysis_of
from .criteria import Weighed
from .dictionary import from_python_dict, unwrap_dict
from .errors import (
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN,
    H_ERR_WIPT3,
    HOperatorError,
)
from .fit import require_fit, scored_data
from .guard import guarded
from .handle import HHandle, new_handle
from .hparams import NAMES as HPARAMS
from .image import HObject
from .imagescores import add_images, network_of
from .mark import note_weights
from .model import unwrap_model
from .payload import SEM_TYPE, Payload, payload_of
from .pruningdata import PruningData
from .quantised import refuse_converted
from .removal import generate
from .samples import read_batch
from .selection import dense_features
from .serialization import register_serializer
from .sparsity.magnitude import MODE as MAGNITUDE
from .sparsity.magnitude import MagnitudeData
from .sparsity.operators import create_magnitude_pruning
from .tuples import Element, HTuple, TupleLike, scalar, to_str, to_tuple


def _from_bytes(data: bytes) -> Payload:
    """Return what Payload.to_bytes wrote; any exception means that the bytes are damaged."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        kind = json.loads(str(arrays["head"])).get("kind")
    return MagnitudeData.from_bytes(data) if kind == MAGNITUDE else PruningData.from_bytes(data)


register_serializer(SEM_TYPE, Payload, lambda payload: payload.to_bytes(), _from_bytes)


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def create_dl_pruning(dlmodel_handle: HHandle, mode: str, gen_param: HHandle | Sequence[HHandle]) -> HHandle:
    """Create the data that pruning a classifier needs.

    Parameters: `dlmodel_handle` (model of type 'classification' with at least one convolution that can lose a
    kernel, or else a dense layer that can lose a feature: 'prunable_kernel_num' is 0 then, and features leave), `mode`
    (how kernels are scored, see below), `gen_param` ([] or a handle of type 'dict' whose keys are parameters of
    set_dl_pruning_param).
    Modes: 'oracle': by what the removal does to each sample's loss, to first order. Beyond HALCON:
    'linear_logits': the same with the logits instead of the loss linear in the removal (as many backward passes as
    classes, 64 at most); 'exact_oracle': by the true change of each sample's loss (about half a forward pass per
    kernel and image: for small networks); 'gram_greedy': by how the removed kernels together change the logits (four
    backward passes; the best choice where nothing makes up for what is removed, 'compensation' 'none'); 'l1', 'l2':
    norm of the kernel's weights; 'bn_scale': |gamma| of the BatchNormalization behind; 'random': drawn ('seed'). The
    last four need no images: batches are only needed for the compensation. 'magnitude': no kernels are scored; single
    weights become zero while the model is trained, see update_dl_pruning_masks; `gen_param` then holds hyperparameters
    of get_pruning_hparams, and may hold 'remove_empty_kernels' ('true', 'false').
    Returns a handle of type 'dl_pruning'. It belongs to the architecture: any model of the same structure fits.
    Raises HOperatorError 7981 (no convolution can be pruned, nor a dense layer; says why for each; mode 'bn_scale'
    without BatchNormalization), 7912 (type 'generic', quantised or converted), 1302 (mode), 7911/7914 (gen_param),
    2404/2454 (handle).
    Source: HALCON operator create_dl_pruning.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = ha.create_dl_pruning(model, "oracle", [])
        >>> ha.get_dl_pruning_param_s(pruning, "percentage")
        10
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    settings: dict[str, HTuple] = {"mode": (to_str(mode, "mode", 2),), **_generic(gen_param)}
    classifier.require_classification("create_dl_pruning")
    if mode == MAGNITUDE:
        return _create_magnitude(dlmodel_handle, settings)
    refuse_converted(classifier)
    data = PruningData.of(analysis_of(classifier))
    for name, values in settings.items():
        data.set(name, values)
    _require_prunable(data)
    if isinstance(data.criterion, Weighed):
        data.weighed = data.criterion.weigh(network_of(classifier))
    return new_handle(SEM_TYPE, data)


def _create_magnitude(dlmodel_handle: HHandle, settings: dict[str, HTuple]) -> HHandle:
    """Return data of mode 'magnitude': hyperparameters make its recipe, what is left are options."""
    hparams = {name: values for name, values in settings.items() if name in HPARAMS}
    handle = create_magnitude_pruning(dlmodel_handle, MagnitudeData.recipe_of(hparams))
    for name, values in settings.items():
        if name not in hparams:
            payload_of(handle, 1).set(name, values)
    return handle


def _require_prunable(data: PruningData) -> None:
    if data.prunable_kernel_num or data.prunable_feature_num:
        return
    listed = list(zip(data.layers, data.reasons(), strict=True))
    reasons = "; ".join(f"{layer.name!r}: {reason}" for layer, reason in listed[:8])
    hint = ""
    if dense_features(data.kernels, data.features).any() and not data.prunes_dense:
        hint = " Its dense layers have features that may leave; leave 'prune_dense' at 'auto' for that."
    raise HOperatorError(
        H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN,
        f"None of the {len(listed)} convolutions of this model can lose a kernel"
        + (f" ({reasons}{'; …' if len(listed) > 8 else ''})." if listed else ": it has no convolution.")
        + hint,
    )


def _generic(gen_param: object) -> dict[str, HTuple]:
    elements = to_tuple(gen_param, "gen_param")
    if not elements:
        return {}
    settings: dict[str, HTuple] = {}
    for key, value in unwrap_dict(elements[0] if len(elements) == 1 else gen_param, 3).entries.items():
        if isinstance(value, HObject) or not isinstance(key, str):
            raise HOperatorError(
                H_ERR_WIPT3, f"The entry {key!r} of gen_param is no parameter; names with numbers or strings are."
            )
        settings[key] = value
    return settings


def set_dl_pruning_param(dlpruning_handle: HHandle, gen_param_name: str, gen_param_value: TupleLike) -> None:
    """Set a parameter of the pruning data.

    Parameters: `dlpruning_handle` (type 'dl_pruning'), `gen_param_name` and `gen_param_value`:
    'mode' (see create_dl_pruning; until the first batch is added); 'percentage' (number in [0, 100], share of the
    removable kernels, or of another 'target', to remove, default 10).
    Beyond HALCON: 'normalization' ('sqrt_mean', 'mean', 'l2', 'none': how scores of different layers are compared);
    'max_layer_percentage' (number in [0, 100] or 'auto': no group of coupled layers loses more of its kernels; auto is
    percentage + 20 where the score alone decides, else 100);
    'target': what 'percentage' is a percentage of. 'kernels' (default): of the removable kernels. 'macs', 'params': of
    all multiply-accumulates or all parameters of the network, never more than asked. 'latency': of the time of a run at
    batch size 1 (or the one that the file fixes), measured by ONNX Runtime on this machine, as near as whole blocks of
    channels come to it; 'kernel_multiple' 1 then counts as 'auto'. 'accuracy_drop': points of accuracy that may be
    lost; as many kernels as possible then go. Accuracy is measured on the images of the refit, and for 'target_reached'
    on remembered images that nothing is fitted to; neither may lose more:
    'held_out_image_num' (integer ≥ 1, default 256) are remembered beside 'calibration_image_num', those with the
    largest content hashes of all that are remembered, if the target is set before the first batch; of too few images
    both get their share. Images without label count as the original decides them;
    'kernel_multiple' (integer ≥ 1, default 1, or 'auto'): a convolution that loses kernels keeps a multiple of it; one
    with no more kernels than that loses none. With odd numbers of channels a network can be slower than before although
    it computes less: 'auto' is what ONNX Runtime computes at once on this machine (8 on processors with AVX2, 16 with
    AVX-512). 8 and its multiples become multiples of that as well, i.e. 16 with AVX-512: there 8 channels more cost as
    much as 16, and pooling and concatenation leave the blocked layout. Other numbers are kept as asked, but may cost
    time;
    'min_kernel_num' (integer ≥ 1, default 1): each convolution keeps so many;
    'exclude_layers' (names of layers or regular expressions for whole names, default []): these lose nothing, nor does
    what is coupled with them, and they no longer count as removable; 'layer_percentages' ("pattern:percent" strings
    like "stage4.*:0", or a dict handle from patterns to numbers, default []): no layer that a pattern fits loses more
    of its kernels; the first one that fits counts;
    'prune_dense' ('true': with 'target' 'kernels', percentage percent of the removable features of Gemm and MatMul
    leave too, counted apart from kernels; 'false': they stay; 'auto', default: they leave only in a network none of
    whose convolutions can lose a kernel, as ConvNeXt);
    'compensation' ('least_squares', default: the layers that read removed channels are refitted on remembered images,
    without labels and without training; 'bias': only their biases; 'none': plain removal, exact);
    'selection' ('reconstruction': score times root of the error that remains after the refit; 'score': the score
    alone; 'auto', default: 'reconstruction' unless compensation is 'none' or the mode's scores are no changes of the
    loss, i.e. is one of 'gram_greedy', 'l1', 'l2', 'bn_scale', 'random'); 'choice_num' (1, 2 or 'auto', default: with
    'reconstruction' each step refits so many choices of kernels, which weigh score and remaining error differently, and
    keeps the one whose decisions stay nearest to the original's; 'auto': 2 where a look at the remembered images takes
    fewer than 5e10 multiply-accumulates, else 1); 'joint_refit' ('true': after the last step the weights of all layers
    are refitted together so that the logits on the remembered images come near to the original's, by one solution of
    linear equations, without labels; at most 2,304 equations and 1 GB of gradients, so that large networks are fitted
    to few images; 'false': they are not; 'auto', default: as with 'choice_num', where a look takes that little);
    'step_percentage' (number in (0, 100], default 10: with compensation, so many percent of the removable kernels that
    are left go at a time, a fifth of the first step at least, and what stays is scored again); 'calibration_image_num'
    (integer ≥ 1, default 256: images that the handle remembers for this, in single precision, those with the smallest
    content hashes); 'batchnorm' ('keep', default; 'reestimate': a BatchNormalization behind a refitted layer gets the
    mean and the variance that it sees on the remembered images); 'distillation_steps' (integer ≥ 0, default 0: so many
    Adam steps at the end, without labels, on all weights but the model's 'frozen_weights', towards the original's
    logits on the remembered images);
    'seed' (integer ≥ 0, default 0: for mode 'random').
    Raises HOperatorError 7911 (unknown or read-only name), 7914 (value out of range), 1203 (type), 1302 (mode), 7980
    (mode, after the first batch), 2404/2454 (handle); HTupleConversionError (bool, None).
    Source: HALCON operator set_dl_pruning_param.

    Example: see get_dl_pruning_param.
    """
    data = payload_of(dlpruning_handle, 1)
    data.set(to_str(gen_param_name, "gen_param_name", 2), to_tuple(gen_param_value, "gen_param_value"))


def get_dl_pruning_param(dlpruning_handle: HHandle, gen_param_name: str) -> list[Element]:
    """Return a parameter or result of the pruning data.

    Parameters: `dlpruning_handle` (type 'dl_pruning'), `gen_param_name`: one that set_dl_pruning_param knows, or
    'prunable_conv_num' (convolutions that can lose kernels), 'prunable_conv_layer_name' (their names in graph order),
    'prunable_kernel_num' (kernels that 100 percent would remove; one stays in each convolution), 'pruned_kernel_num'
    and 'pruned_percentage' (what the last gen_dl_pruned_model removed, in kernels and as 100 · pruned / prunable).
    Beyond HALCON: 'target_reached' (what it reached of 'target', in percent; for 'accuracy_drop' the points lost on
    held-out images); 'prunable_feature_num' and 'pruned_feature_num' (the same for features of dense layers that hold
    no kernel; 0 where 'prune_dense' lets them stay); 'scored_image_num' (images that were added so far).
    Returns a list of int, float or str. Raises HOperatorError 7911, 2404 or 2454.
    Source: HALCON operator get_dl_pruning_param.

    Example:
        >>> import dlprune as ha
        >>> pruning = ha.create_dl_pruning(ha.read_dl_model(ha.demo_model_file()), "oracle", [])
        >>> ha.set_dl_pruning_param(pruning, "percentage", 25)
        >>> ha.get_dl_pruning_param(pruning, "percentage")
        [25]
    """
    data = payload_of(dlpruning_handle, 1)
    return data.get(to_str(gen_param_name, "gen_param_name", 2))


def get_dl_pruning_param_s(dlpruning_handle: HHandle, gen_param_name: str) -> Element:
    """Return get_dl_pruning_param as a scalar; raises HTupleConversionError unless there is exactly one value."""
    return scalar(get_dl_pruning_param(dlpruning_handle, gen_param_name), f"The parameter {gen_param_name!r}")


def get_dl_pruning_layer_info(dlpruning_handle: HHandle) -> list[HHandle]:
    """Return what is known of each convolution (beyond HALCON).

    Parameters: `dlpruning_handle` (type 'dl_pruning').
    Returns one dict handle per convolution in graph order: 'name'; 'kernel_num'; 'prunable' (0 or 1); 'reason' (why it
    cannot be pruned, '' if it can); 'unit_ids' (per kernel: kernels with the same number, also in other layers, only
    leave together; −1 never leaves); 'kernel_scores' (per kernel the mean absolute score so far, −1.0 where it cannot
    leave, empty before the first batch); 'pruned_kernel_ids' (kernels that the last gen_dl_pruned_model removed).
    Raises HOperatorError 2404 or 2454.

    Example:
        >>> import dlprune as ha
        >>> pruning = ha.create_dl_pruning(ha.read_dl_model(ha.demo_model_file()), "oracle", [])
        >>> [ha.get_dict_tuple_s(layer, "prunable") for layer in ha.get_dl_pruning_layer_info(pruning)][0]
        1
    """
    data = payload_of(dlpruning_handle, 1)
    return [from_python_dict(info) for info in data.layer_info()]


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def add_dl_pruning_batch(
    dlmodel_handle_to_prune: HHandle, dlpruning_handle: HHandle, dlsample_batch: Sequence[HHandle]
) -> None:
    """Score a batch of samples and add the scores to the pruning data; the model is not changed.

    May be called from several threads at once; the order and the size of batches do not matter. In mode 'oracle' each
    sample's score is the absolute first-order change of its own cross-entropy if the unit were removed. Modes that look
    at weights alone only remember images here, for the compensation.

    Parameters: `dlmodel_handle_to_prune` (type 'classification', structure as in create_dl_pruning),
    `dlpruning_handle` (type 'dl_pruning'), `dlsample_batch` ('batch_size' sample dicts with 'image' and, in all or in
    none of them, 'image_label_id'; without labels the model's own decision counts as the target).
    Raises HOperatorError 7784 (batch length), 7783/7790/7791/7793 (entries of a sample), 7980 (other architecture),
    7912 (type 'generic', or an operator without gradient), 2404/2454 (handle).
    Warns (UserWarning) if the data holds scores of a model with other weights, as after training.
    Source: HALCON operator add_dl_pruning_batch; score: Molchanov et al., Pruning Convolutional Neural Networks for
    Resource Efficient Inference, 2017, taken at the consumers of a channel.

    Example: see gen_dl_pruned_model.
    """
    classifier = unwrap_model(dlmodel_handle_to_prune, 1)
    data = scored_data(dlpruning_handle, 2)
    classifier.require_classification("add_dl_pruning_batch")
    require_fit(classifier, data)
    batch = read_batch(dlsample_batch, classifier, 3, classifier.params.batch_size)
    note_weights(classifier, data)
    add_images(classifier, data, batch.images, batch.labels, len(batch.images))


def merge_dl_pruning(dlpruning_handle: HHandle, dlpruning_handle_other: HHandle) -> None:
    """Add the scores of other pruning data, so that many machines can share the scoring (beyond HALCON).

    Each machine scores its own images with a handle of its own, which then travels by serialize_handle. The result is
    what one handle would hold that had seen all the batches: scores, number of samples and remembered images. The
    parameters of the first handle stay, and the other handle stays as it is.

    Parameters: `dlpruning_handle` (type 'dl_pruning'; changed), `dlpruning_handle_other` (type 'dl_pruning', of the
    same architecture and 'mode').
    Raises HOperatorError 7980 (other architecture or mode; then nothing has changed), 2404/2454 (handle).

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 8)
        >>> here, there = (ha.create_dl_pruning(model, "oracle", []) for _ in range(2))
        >>> ha.add_dl_pruning_batch(model, here, ha.demo_samples()[:8])
        >>> ha.add_dl_pruning_batch(model, there, ha.demo_samples()[8:16])
        >>> sent = ha.serialized_item_as_bytes(ha.serialize_handle(there))
        >>> ha.merge_dl_pruning(here, ha.deserialize_handle(ha.serialized_item_from_bytes(sent)))
    """
    data = scored_data(dlpruning_handle, 1)
    data.merge(scored_data(dlpruning_handle_other, 2))


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def gen_dl_pruned_model(dlmodel_handle_to_prune: HHandle, dlpruning_handle: HHandle) -> HHandle:
    """Return a pruned copy of a model: smaller weights, fewer operations, everything else as before.

    Removes 'percentage' percent of the removable kernels (or of another 'target'), never more, the least important
    first. With 'compensation'
    'none' the copy gives exactly what the original gives with the removed channels cut off from the layers that read
    them; otherwise those layers are refitted so that their outputs stay close to the original's. The input model and
    the scores stay, so that the operator can be called again with another percentage.
    In mode 'magnitude' the copy is sparse instead: zeros where masks say so, no masks any more, all shapes as before;
    with 'remove_empty_kernels' 'true' kernels without a weight left leave it (plain removal, so what their bias gave is
    lost). Masks that hold a model's weights at zero go with it through the surgery of the other modes; what a refit
    had filled in there is zero again.

    Parameters: `dlmodel_handle_to_prune` (type 'classification'), `dlpruning_handle` (with at least one batch;
    none is needed by the modes of weights alone with 'compensation' 'none').
    Returns a handle of type 'dl_model'. Writes 'pruned_kernel_num', 'pruned_percentage' and the like into the pruning
    data.
    Raises HOperatorError 7980 (other architecture, or no scores yet), 7912 (type 'generic'), 2404/2454 (handle).
    Warns (UserWarning) if the scores are of a model with other weights, as before training.
    Source: HALCON operator gen_dl_pruned_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 8)
        >>> pruning = ha.create_dl_pruning(model, "oracle", [])
        >>> ha.add_dl_pruning_batch(model, pruning, ha.demo_samples()[:8])
        >>> ha.set_dl_pruning_param(pruning, "percentage", 25)
        >>> pruned = ha.gen_dl_pruned_model(model, pruning)
        >>> 20 < ha.get_dl_pruning_param_s(pruning, "pruned_percentage") <= 25
        True
    """
    classifier = unwrap_model(dlmodel_handle_to_prune, 1)
    data = payload_of(dlpruning_handle, 2)
    classifier.require_classification("gen_dl_pruned_model")
    if isinstance(data, MagnitudeData):
        return new_handle("dl_model", data.generate(classifier))
    assert isinstance(data, PruningData)
    require_fit(classifier, data)
    with data.lock:
        pruned, _ = generate(classifier, data)
    return new_handle("dl_model", pruned)
