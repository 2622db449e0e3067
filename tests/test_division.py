"""How a batch is divided between processors."""

from __future__ import annotations

import numpy as np
import pytest
from models import plain

from dlprune import division
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.criteria import Network
from dlprune.division import Division, divide


def divided(batch: int, processors: int, monkeypatch: pytest.MonkeyPatch, worthwhile: int | None = None) -> Division:
    monkeypatch.setattr(division, "processors", lambda: processors)
    if worthwhile is not None:
        monkeypatch.setattr(division, "_worthwhile", lambda *_: worthwhile)
    one = Classifier.from_proto(plain())
    return divide(one.model, one.facts(), one.input_name, batch)


@pytest.mark.parametrize(
    ("batch", "processors", "worthwhile", "expected"),
    [
        (1, 2, 1, Division(1, 1, 0)),
        (8, 1, 1, Division(8, 1, 0)),
        (8, 2, 1, Division(1, 2, 1)),
        (8, 2, 3, Division(2, 2, 1)),
        (8, 2, 100, Division(4, 2, 1)),
        (9, 2, 100, Division(5, 2, 1)),
        (3, 8, 1, Division(1, 3, 2)),
        (64, 4, 10, Division(8, 4, 1)),
    ],
)
def test_parts_are_equal_and_keep_all_processors_busy(
    batch: int, processors: int, worthwhile: int, expected: Division, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rounds of equal parts as the wished size asks for; fewer images than processors share their threads."""
    assert divided(batch, processors, monkeypatch, worthwhile) == expected


def test_parts_are_small_where_maps_outweigh_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 2.6 kB of weights and 7.3 kB of maps per image; those of two images are five times as much."""
    assert divided(8, 2, monkeypatch) == Division(2, 2, 1)


def test_a_fixed_batch_is_not_divided() -> None:
    """A file that fixes its batch is scored as it is."""
    one = Classifier.from_proto(plain(batch=4))
    graph = Network(one, analysis_of(one).structure, 4).score_graph()
    assert graph.input_shape[0] == 4


def test_batches_that_are_divided_alike_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch size needs no second session, changed weights do."""
    monkeypatch.setattr(division, "processors", lambda: 2)
    one = Classifier.from_proto(plain())
    structure = analysis_of(one).structure
    first, second = (Network(one, structure, batch).score_graph() for batch in (4, 8))
    assert first is second
    rng = np.random.default_rng(0)
    images = rng.standard_normal(one.input_shape(8)).astype(np.float32)
    assert first.evaluate(images, np.full(8, -1)).logits.shape[0] == 8
    one.weights_changed()
    assert Network(one, analysis_of(one).structure, 4).score_graph() is not first
