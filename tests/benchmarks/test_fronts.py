"""What is made of rounds on two fronts."""

from typing import Any

from benchmarks.fronts import summary


def test_ratios_are_of_rounds_that_were_sent_the_same() -> None:
    def figures(front: str, tokens_per_s: float, cpu: float) -> dict[str, Any]:
        return {"front": front, "tokens_per_s": tokens_per_s, "gateway_cpu_s_per_1k": cpu}

    rounds = [
        *(figures("grpc", 100.0, 0.01), figures("http", 90.0, 0.02)),
        *(figures("http", 300.0, 0.04), figures("grpc", 200.0, 0.03)),
        *(figures("grpc", 400.0, 0.05), figures("http", 400.0, 0.06)),
    ]
    assert summary(rounds, same_texts=True) == {
        "throughput_ratio": 1.0,
        "same_texts": True,
        "tokens_per_s": {"grpc": 200.0, "http": 300.0},
        "gateway_cpu_s_per_1k": {"grpc": 0.03, "http": 0.04},
    }
