"""Data-parallel gradients in JAX: `jax.grad` on each rank's part of a batch, averaged by `paceline.jax.all_reduce`.

paceline run -np 2 -- python examples/jax_grad.py
"""

import jax
import jax.numpy as jnp
import paceline
import paceline.jax


def loss(weights: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error of a small net."""
    hidden = jnp.tanh(x @ weights["first"])
    return jnp.mean((hidden @ weights["second"] - y) ** 2)


def main() -> None:
    """Train on a part of each batch, and compare with training on the whole."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {"first": jax.random.normal(keys[0], (8, 16)) / 3, "second": jax.random.normal(keys[1], (16, 1)) / 4}
    x, wanted = jax.random.normal(keys[2], (64, 8)), jax.random.normal(keys[3], (8, 1))
    y = jnp.sin(x @ wanted)
    whole = weights

    gradient = jax.jit(jax.value_and_grad(loss))
    with paceline.job.join() as job:
        own = slice(job.rank * 64 // job.size, (job.rank + 1) * 64 // job.size)
        for step in range(50):
            _, grads = gradient(weights, x[own], y[own])
            names = sorted(grads)
            means = paceline.jax.all_reduce(job, [grads[name] for name in names], "average")
            weights = {name: weights[name] - 0.1 * mean for name, mean in zip(names, means, strict=True)}

            value, grads = gradient(whole, x, y)
            whole = jax.tree.map(lambda weight, grad: weight - 0.1 * grad, whole, grads)
            if step % 10 == 0 and job.rank == 0:
                print(f"step {step}: loss {value:.4f}")
        far = max(float(jnp.abs(weights[name] - whole[name]).max()) for name in weights)
        assert far < 1e-4, f"weights differ by {far} from those of one process with the whole batch"
        if job.rank == 0:
            print(f"weights of {job.size} ranks differ by {far:.1e} from those of one process with the whole batch")


if __name__ == "__main__":
    main()
