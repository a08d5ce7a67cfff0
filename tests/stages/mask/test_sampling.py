"""Which tokens end a generation, where places differ. What the proof finds is tested in whole runs."""

from packtrain.stages.mask.sampling_proof import StopTokens


def test_whom_to_believe() -> None:
    added = {"<|im_end|>": 2, "<eos>": 3}
    assert StopTokens.of(["<|im_end|>"], [], "<eos>", added).ids == {2}
    assert StopTokens.of(["<|im_end|>"], [4], "<eos>", added).ids == {2, 4}
    assert StopTokens.of([], [4], "<eos>", added).ids == {4}
    assert StopTokens.of([], [], "<eos>", added).ids == {3}
    assert StopTokens.of([], [], None, added).ids == set()
    assert StopTokens.of(["<|im_end|>"], [4], "<eos>", added).unnamed == (2,)
    assert StopTokens.of(["<|im_end|>"], [2, 4], "<eos>", added).unnamed == ()
    assert StopTokens.of(["<|im_end|>"], [], "<eos>", added).unnamed == (2,), "the tokenizer names another"
    assert StopTokens.of(["<|im_end|>"], [], None, added).unnamed == (), "nothing else is named"
