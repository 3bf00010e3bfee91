"""The peak of live bytes, when it is, and what it is made of; counted by hand."""

from tests.estimate.logs import MIB, Written, of_model

from echelon.estimate import timeline


def test_peak_by_hand() -> None:
    """The peak is in the backward of the block, and each byte of it has its category and module."""
    log = Written(blocks=("layers.0",), modules=("", "layers.0", "layers.0.mlp"))
    log.weight("layers.0.weight", 1000, 0)
    log.mark("step")
    log.mark("enter", 0)
    first = log.new(300, "activation", module="layers.0", grows=True)
    second = log.new(77, "activation", module="layers.0.mlp", grows=True)
    log.mark("leave", 0)
    log.mark("backward")
    log.mark("enter backward", 0)
    gradient = log.new(1000, "gradient")
    log.free(second, first)
    log.mark("leave backward", 0)
    log.mark("optimizer")
    log.new(900, "state")
    log.free(gradient)
    log.mark("end")
    peak = timeline.peak(log.read())
    assert (peak.num_bytes, peak.phase, peak.block) == (2900, "optimizer", "")
    assert peak.parts == {"parameter": 1000, "gradient": 1000, "state": 900}
    log.data["tensors"][4][0] = 10
    peak = timeline.peak(log.read())
    assert (peak.num_bytes, peak.phase, peak.block) == (2377, "backward", "layers.0")
    assert peak.parts == {"parameter": 1000, "gradient": 1000, "activation": 377}
    assert peak.activations == {"layers.0": 300, "layers.0.mlp": 77}


def test_parts_add_up_to_the_peak() -> None:
    """No byte is in two parts or in none."""
    peak = timeline.peak(of_model(activation_bytes=32 * MIB))
    assert sum(peak.parts.values()) == peak.num_bytes
    assert sum(peak.activations.values()) == peak.parts["activation"]


def test_course_is_that_of_the_last_step() -> None:
    """The course begins with what outlives a step, reaches the peak, and ends with its borders in order."""
    log = of_model(num_blocks=2)
    course = timeline.course(log)
    weights = (2 * 12 + 2 * 8) * MIB
    assert course.num_bytes[0] == 4 * weights + 4096  # with gradients, states and the input of the step before
    assert max(course.num_bytes) == timeline.peak(log).num_bytes
    assert [name for name, _ in course.phases] == ["forward", "backward", "optimizer", "end"]
    assert [name for name, _ in course.blocks][:2] == ["enter layers.0", "leave layers.0"]
    assert all(0 <= index <= len(course.num_bytes) for _, index in (*course.phases, *course.blocks))
