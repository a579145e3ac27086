"""Workers of a study share the GPUs that are visible."""

from dygmamba.lab.pool import assign_gpu


def test_workers_take_the_gpus_in_turn(monkeypatch):
    """Of several each worker sees one, as CUDA names it; one GPU, or none, is everybody's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert [assign_gpu("cuda", number).get("CUDA_VISIBLE_DEVICES") for number in range(3)] == [
        "3",
        "GPU-5",
        "3",
    ]
    assert assign_gpu("cpu", 1) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert assign_gpu("cuda", 1) == {}
