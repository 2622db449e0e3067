"""Options of training, which `finetune` and `prune` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:  # takes longer to import than the rest of the command line
    from dlprune.classifier import Classifier
    from dlprune.training.finetune import Plan

_TRAINING: Final = "Training"


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained; see finetune_dl_model."""

    solver: Annotated[Literal["adam", "sgd"], typer.Option(help="What steps are taken.", rich_help_panel=_TRAINING)] = (
        "adam"
    )
    learning_rate: Annotated[
        float,
        typer.Option(
            help="The highest one. Where batch normalization is folded into convolutions, take a tenth.",
            rich_help_panel=_TRAINING,
        ),
    ] = 0.001
    schedule: Annotated[
        Literal["cosine", "step", "constant"],
        typer.Option(help="How the learning rate goes down.", rich_help_panel=_TRAINING),
    ] = "cosine"
    warmup: Annotated[
        float, typer.Option(min=0, metavar="EPOCHS", help="It rises at the beginning.", rich_help_panel=_TRAINING)
    ] = 1.0
    weight_prior: Annotated[
        float, typer.Option(min=0, help="Weight decay of kernels and matrices.", rich_help_panel=_TRAINING)
    ] = 0.0
    train_batch: Annotated[
        int, typer.Option("--train-batch", min=1, help="Images per step.", rich_help_panel=_TRAINING)
    ] = 32
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="EPOCHS",
            help="Stop after so many epochs without improvement on the held-out images.",
            rich_help_panel=_TRAINING,
            show_default=False,
        ),
    ] = None
    flip: Annotated[
        bool, typer.Option("--flip", help="Mirror half of the images left and right.", rich_help_panel=_TRAINING)
    ] = False
    shift: Annotated[
        float,
        typer.Option(
            min=0, max=100, metavar="PERCENT", help="Move images by up to so much.", rich_help_panel=_TRAINING
        ),
    ] = 0.0
    crop: Annotated[
        float,
        typer.Option(
            min=0, max=99, metavar="PERCENT", help="Cut off up to so much, enlarge the rest.", rich_help_panel=_TRAINING
        ),
    ] = 0.0
    brightness: Annotated[
        float,
        typer.Option(
            min=0, metavar="PERCENT", help="Lighten or darken by up to so much of the range.", rich_help_panel=_TRAINING
        ),
    ] = 0.0
    freeze: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Names of weights that stay as they are, also patterns such as 'stage1.*'.",
            rich_help_panel=_TRAINING,
            show_default=False,
        ),
    ] = ""
    freeze_statistics: Annotated[
        bool,
        typer.Option(
            "--freeze-statistics", help="Batch normalization keeps its running statistics.", rich_help_panel=_TRAINING
        ),
    ] = False
    temperature: Annotated[
        float, typer.Option(min=0.01, help="With a teacher: how much logits are softened.", rich_help_panel=_TRAINING)
    ] = 4.0
    distillation: Annotated[
        float,
        typer.Option(min=0, max=1, help="With a teacher: its share of the loss.", rich_help_panel=_TRAINING),
    ] = 0.5

    def plan(self, classifier: Classifier, epochs: int, seed: int) -> Plan:
        """Set the solver's parameters of a classifier and return what is to be done."""
        from dlprune.training.augmentation import Augmentation
        from dlprune.training.finetune import Plan
        from dlprune.training.operators import batch_and_parts

        classifier.set("solver_type", (self.solver,))
        classifier.set("learning_rate", (self.learning_rate,))
        classifier.set("weight_prior", (self.weight_prior,))
        classifier.set("batchnorm_frozen", ("true" if self.freeze_statistics else "false",))
        classifier.set("frozen_weights", tuple(name.strip() for name in self.freeze.split(",") if name.strip()))
        params = classifier.params
        batch, parts = batch_and_parts(classifier, self.train_batch)
        return Plan(
            epochs=epochs,
            batch=batch,
            parts=parts,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            warmup=self.warmup,
            seed=seed,
            augmentation=Augmentation(
                flip=self.flip,
                shift=self.shift / 100,
                crop=self.crop / 100,
                brightness=self.brightness / 100,
                value_range=params.image_range_max - params.image_range_min,
            ),
            patience=self.patience,
            temperature=self.temperature,
            distillation=self.distillation,
        )
