"""Slow NumPy forms of the algorithms, close to the papers' notation. One environment, loops over time."""

from __future__ import annotations

import numpy as np


def lambda_return(rewards, terminated, truncated, values, bootstrap_value, discount, trace_lambda, t):
    """The λ-mixture of k-step returns (Sutton & Barto, eq. 12.3), each one cut at the end of the game."""
    after = np.append(values[1:], bootstrap_value)
    returns, total, scale = [], 0.0, 1.0
    for k in range(t, len(rewards)):
        total += scale * rewards[k]
        scale *= discount
        returns.append(total if terminated[k] else total + scale * after[k])
        if terminated[k] or truncated[k]:
            break
    mixture = sum((1 - trace_lambda) * trace_lambda**i * r for i, r in enumerate(returns[:-1]))
    return mixture + trace_lambda ** (len(returns) - 1) * returns[-1]


def vtrace(ratios, rewards, terminated, truncated, valid, values, bootstrap_value, discount, trace_lambda):
    """v_s by the explicit sum of eq. 1, and advantages, for one environment."""
    length = len(rewards)
    after = np.append(values[1:], bootstrap_value)
    gammas = np.where(terminated, 0.0, discount)
    rhos = np.minimum(1.0, ratios)
    traces = trace_lambda * rhos
    targets = np.array(values, dtype=np.float64)
    for s in range(length):
        if not valid[s]:
            continue
        product = 1.0
        for t in range(s, length):
            if not valid[t]:
                break
            targets[s] += product * rhos[t] * (rewards[t] + gammas[t] * after[t] - values[t])
            product *= gammas[t] * traces[t]
            if truncated[t] or terminated[t]:
                break
    advantages = np.zeros(length)
    for s in range(length):
        if not valid[s]:
            continue
        goes_on = s + 1 < length and not truncated[s] and valid[s + 1]
        corrected = trace_lambda * targets[s + 1] + (1 - trace_lambda) * after[s] if goes_on else after[s]
        advantages[s] = rhos[s] * (rewards[s] + gammas[s] * corrected - values[s])
    return targets, advantages
