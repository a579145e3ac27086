"""What a training imports."""

import subprocess
import sys

import pytest

TRAIN = """
import sys
import dygmamba as dm

data = dm.generate(nodes=40, events=800)
for model in ("trees", "graphmixer"):
    dm.train(data, model, epochs=1, device="cpu", out=sys.argv[1])
print(*(name for name in sys.modules if name.startswith(("dygmamba.studies", "dygmamba.auditing"))))
"""


@pytest.mark.slow
def test_training_imports_neither_studies_nor_audits(tmp_path):
    call = [sys.executable, "-c", TRAIN, str(tmp_path)]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip() == ""
