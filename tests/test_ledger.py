"""What removing a unit saves: against sums by hand, and against counting the network anew."""

from __future__ import annotations

import numpy as np
import pytest
from models import model, plain
from netchecks import read
from netgenerator import generate

from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.cost import Cost, graph_cost, weights_of
from dlprune.expenses import multiply_accumulate_terms, parameter_terms
from dlprune.facts import gather_facts
from dlprune.ledger import CountLedger, Ledger
from dlprune.selection import Mask, dense_features, removable
from dlprune.structure import FIXED, Structure
from dlprune.surgery import remove_units

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\nnet '


def ledger_of(classifier: Classifier, quantity: str) -> Ledger:
    """Return the ledger of a network as it is."""
    found = analysis_of(classifier)
    shape = found.facts.shape(classifier.input_name)
    assert shape is not None
    if quantity == "macs":
        pairs = multiply_accumulate_terms(classifier.model, found.facts, found.structure, shape[0])
        return Ledger([term for _, term in pairs], found.structure.unit_num)
    return Ledger(parameter_terms(classifier.model, found.facts, found.structure), found.structure.unit_num)


def savings(classifier: Classifier, quantity: str) -> dict[str, float]:
    """Return what the first unit of each convolution and dense layer saves."""
    structure, ledger = analysis_of(classifier).structure, ledger_of(classifier, quantity)
    return {
        layer.output: float(ledger.savings[layer.units[0]]) for layer in structure.all_layers if layer.units[0] != FIXED
    }


def test_a_plain_kernel_saves_itself_and_the_slices_that_read_it() -> None:
    classifier = Classifier.from_proto(plain(channels=3, size=8, classes=5))
    # 8×8 pixels: a kernel of 3·3·3 and its slice in 8 kernels of 3·3; a kernel of 6·3·3 and its row in 5 classes.
    assert savings(classifier, "macs") == {"a": 64 * 27 + 64 * 8 * 9, "c": 64 * 54 + 5}
    assert savings(classifier, "params") == {"a": 27 + 1 + 8 * 9, "c": 54 + 5}


def test_marginal_costs_follow_the_widths_of_the_neighbours() -> None:
    classifier = Classifier.from_proto(plain(channels=3, size=8, classes=5))
    structure, ledger = analysis_of(classifier).structure, ledger_of(classifier, "macs")
    first, second = structure.layers
    ledger.remove(int(first.units[0]))
    assert ledger.savings[first.units[0]] == 0
    assert ledger.savings[first.units[1]] == 64 * 27 + 64 * 8 * 9
    assert ledger.savings[second.units[0]] == 64 * 45 + 5
    ledger.remove(int(second.units[0]))
    assert ledger.savings[first.units[1]] == 64 * 27 + 64 * 7 * 9
    # 5 of 6 and 7 of 8 kernels are left.
    assert ledger.total == 64 * 5 * 27 + 64 * 7 * 45 + 7 * 5


def test_units_that_leave_together_do_not_save_their_common_weights_twice() -> None:
    classifier = Classifier.from_proto(plain(channels=3, size=8, classes=5))
    structure, ledger = analysis_of(classifier).structure, ledger_of(classifier, "macs")
    pair = [int(layer.units[0]) for layer in structure.layers]
    assert ledger.saving(pair) == sum(ledger.savings[pair]) - 64 * 9


def test_a_residual_unit_saves_in_all_its_convolutions() -> None:
    classifier = Classifier.from_proto(
        model(
            HEADER
            + """(float[N,3,4,4] x) => (float[N,5] y)
            <float[6,3,1,1] w1, float[6,6,3,3] w2, float[6,5] w3> {
              a = Conv(x, w1)
              b = Conv<pads = [1,1,1,1]>(a, w2)
              s = Add(a, b)
              g = GlobalAveragePool(s)
              f = Flatten(g)
              y = Gemm(f, w3)
            }"""
        )
    )
    # 16 pixels: kernels of 3 and of 6·9, its slice in the 5 other kernels of 9, and 5 classes.
    assert savings(classifier, "macs")["a"] == 16 * 3 + 16 * (54 + 5 * 9) + 5


def test_depthwise_grouped_and_transposed_convolutions_save_what_their_weights_say() -> None:
    classifier = Classifier.from_proto(
        model(
            HEADER
            + """(float[N,4,8,8] x) => (float[N,5] y)
            <float[8,4,1,1] w1, float[8,1,3,3] w2, float[8,4,2,2] w3, float[6,2,1,1] w4, float[96,5] w5> {
              a = Conv(x, w1)
              b = Conv<group = 8, pads = [1,1,1,1], strides = [2,2]>(a, w2)
              c = ConvTranspose<strides = [2,2]>(b, w3)
              d = Conv<group = 2, strides = [2,2]>(c, w4)
              e = Flatten<axis = 1>(d)
              y = Gemm(e, w5)
            }"""
        )
    )
    found = savings(classifier, "macs")
    # a and b: 64 pixels of 4, 16 pixels of 9, and 16 pixels that meet 4·2·2 weights each.
    assert found["a"] == 64 * 4 + 16 * 9 + 16 * 16
    structure, ledger = analysis_of(classifier).structure, ledger_of(classifier, "macs")
    assert structure.kernels.sum() == 8 + 8 + 4 + 6
    everything = np.flatnonzero(removable(structure.kernels, structure.constraints))
    for unit in everything.tolist():
        ledger.remove(unit)
    gone = np.zeros(structure.unit_num, np.bool_)
    gone[everything] = True
    assert ledger.total == _cost(classifier, structure, gone)[1].macs


def test_a_flattened_map_takes_its_columns_along() -> None:
    classifier = Classifier.from_proto(
        model(
            HEADER
            + """(float[N,3,4,4] x) => (float[N,5] y) <float[6,3,1,1] w1, float[96,7] w2, float[7,5] w3> {
              a = Conv(x, w1)
              f = Flatten(a)
              h = Gemm(f, w2)
              r = Relu(h)
              y = Gemm(r, w3)
            }"""
        )
    )
    assert savings(classifier, "macs") == {"a": 16 * 3 + 16 * 7, "h": 96 + 5}


def test_counts_of_kernels_and_of_dense_features_have_purses_of_their_own() -> None:
    classifier = Classifier.from_proto(
        model(
            HEADER
            + """(float[N,3,4,4] x) => (float[N,5] y) <float[6,3,1,1] w1, float[6,7] w2, float[7,5] w3> {
              a = Conv(x, w1)
              g = GlobalAveragePool(a)
              f = Flatten(g)
              h = Gemm(f, w2)
              r = Relu(h)
              y = Gemm(r, w3)
            }"""
        )
    )
    structure = analysis_of(classifier).structure
    assert CountLedger(structure).savings.tolist() == [1] * 6 + [0] * 7
    both = CountLedger(structure, dense=True)
    assert both.savings.tolist() == [1] * 13
    assert both.purses.tolist() == [0] * 6 + [1] * 7


@pytest.mark.parametrize("seed", range(30))
def test_what_units_save_is_what_the_smaller_network_lacks(seed: int) -> None:
    """Random nets: operations to the last one, parameters where no weight is read twice (sharing may end)."""
    classifier = read(generate(seed))
    structure = analysis_of(classifier).structure
    if not structure.unit_num:
        return
    rng = np.random.default_rng(seed)
    sizes = structure.kernels + dense_features(structure.kernels, structure.features)
    held = rng.random(structure.unit_num) < rng.random()
    gone = removable(sizes, structure.constraints, held, rng.random(structure.unit_num))
    if not gone.any():
        return
    before, after = _cost(classifier, structure, gone)
    together = np.flatnonzero(gone).tolist()
    if [layer.name for layer in before.layers] != [layer.name for layer in after.layers]:
        return  # a layer that has become useless is gone altogether
    _assert_saves(ledger_of(classifier, "macs"), together, before.macs - after.macs)
    if not _shares_weights(classifier):
        _assert_saves(ledger_of(classifier, "params"), together, before.parameters - after.parameters)


def _assert_saves(ledger: Ledger, units: list[int], amount: float) -> None:
    assert ledger.saving(units) == pytest.approx(amount, rel=1e-9)
    one_by_one = 0.0
    for unit in units:
        one_by_one += float(ledger.savings[unit])
        ledger.remove(unit)
    assert one_by_one == pytest.approx(amount, rel=1e-9)


def _cost(classifier: Classifier, structure: Structure, gone: Mask) -> tuple[Cost, Cost]:
    found = analysis_of(classifier)
    shape = found.facts.shape(classifier.input_name)
    assert shape is not None
    pruned = remove_units(classifier.model, found.facts, structure, gone, found.other_shapes)
    facts = gather_facts(pruned, {classifier.input_name: shape})
    return graph_cost(classifier.model, found.facts, shape[0]), graph_cost(pruned, facts, shape[0])


def _shares_weights(classifier: Classifier) -> bool:
    facts = analysis_of(classifier).facts
    names = [value.name for node in classifier.model.graph for value in weights_of(node, facts)]
    return len(set(names)) < len(names)
