"""One run under a trainer of other people's: the rest of them is not even imported by default, which takes seconds."""

import pytest


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_killed_run_of_lightning_goes_on_with_the_batch_after_its_checkpoint(tmp_path):
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed: the `ecosystem` extra")
    from tests.ecosystem import test_lightning as lightning

    lightning.test_a_killed_run_goes_on_with_the_batch_after_its_checkpoint(tmp_path, lightning.STEPS + 1)
