//! A model of blocks, for the tests of plans and of their execution.
use paceline_iteration::{Collective, Plan, Work};
use paceline_model::trace::{Dtype, Gradient, Layer, Tensor, WorkerTrace};
use paceline_model::{Time, Trace};

/// A root with an embedding and a head, and blocks of two layers with a tensor each of so many elements. A layer takes
/// `layer_ps` forward and twice that backward, the optimizer `layer_ps`.
pub fn model(blocks: u32, elements: u64, layer_ps: u64) -> Trace {
    let mut names = vec!["wte".to_owned()];
    for block in 0..blocks {
        names.extend([format!("h.{block}.attn"), format!("h.{block}.mlp")]);
    }
    names.push("head".into());
    let count = names.len() as u32;
    Trace {
        name: "model".into(),
        provenance: String::new(),
        batch: 2,
        dtype: Dtype::Float32,
        device: String::new(),
        library: String::new(),
        distribution: (0..count).collect(),
        variables: Vec::new(),
        optimizer_bytes: None,
        tensors: names
            .iter()
            .map(|name| Tensor {
                name: format!("{name}.weight"),
                bytes: 4 * elements,
                pull_bytes: 4 * elements,
                frozen_bytes: 0,
                shape: None,
            })
            .collect(),
        workers: vec![WorkerTrace {
            forward: (0..count)
                .zip(&names)
                .map(|(i, name)| Layer {
                    name: name.clone(),
                    duration: Time(layer_ps),
                    tensors: vec![i],
                    activation_bytes: None,
                    backward_bytes: None,
                })
                .collect(),
            gradients: (0..count)
                .rev()
                .map(|i| Gradient { tensor: i, ready: Time(2 * layer_ps * u64::from(count - i)) })
                .collect(),
            backward: Time(2 * layer_ps * u64::from(count)),
            optimizer: Time(layer_ps),
        }],
        operators: None,
        backward_spread: 0.0,
    }
}

/// Bytes that a rank sends in the iteration at least, whatever the algorithm: (n-1)/n of what is gathered or scattered
/// between n ranks, twice that of what is all-reduced.
pub fn least_bytes_sent(plan: &Plan) -> f64 {
    let sent = |work: &Work| match *work {
        Work::Exchange { collective, group, elements, dtype } => {
            let rounds = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
            let size = f64::from(group.size);
            rounds * (size - 1.0) / size * elements as f64 * dtype.size() as f64
        }
        _ => 0.0,
    };
    plan.steps.iter().map(|step| sent(&step.work)).sum()
}
