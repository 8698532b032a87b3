//! Fragments as messages: checks everything a peer sends before it is used.
use bytes::Bytes;

use super::generated;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_transport::header::{Collective, FragmentHeader, Signature};

/// Payload of a fragment. The same as over TCP: large enough that system calls and headers are negligible, small enough
/// that received data is still in the cache when it is combined.
pub const FRAGMENT: usize = 128 << 10;

/// Encodes a fragment as a message.
pub fn message(header: &FragmentHeader, payload: Bytes) -> generated::Fragment {
    let Signature { collective, dtype, op, root, count, plan } = header.signature;
    let (call, dtype, op) = (collective as u32, dtype as u32, op as u32);
    generated::Fragment {
        group: header.group,
        seq: header.seq,
        lane: header.lane,
        slot: header.slot.into(),
        from: header.from.into(),
        to: header.to.into(),
        offset: header.offset,
        signature: Some(generated::Signature { call, dtype, op, root: root.into(), count, plan }),
        payload,
    }
}

/// Decodes the fragment in a message, or says what is wrong with it.
pub fn fragment(message: generated::Fragment) -> Result<(FragmentHeader, Bytes), &'static str> {
    let signature = message.signature.ok_or("a fragment without a signature")?;
    let code = |code: u32| u8::try_from(code).ok();
    let collective = code(signature.call).and_then(|code| Collective::ALL.get(usize::from(code)).copied());
    let short = |number: u32| u16::try_from(number).map_err(|_| "a fragment with a slot, role or root beyond 16 bits");
    let signature = Signature {
        collective: collective.ok_or("a fragment of an unknown call")?,
        dtype: code(signature.dtype).and_then(Dtype::from_code).ok_or("a fragment of an unknown dtype")?,
        op: code(signature.op).and_then(ReduceOp::from_code).ok_or("a fragment of an unknown reduction")?,
        root: short(signature.root)?,
        count: signature.count,
        plan: signature.plan,
    };
    let bytes = message.payload.len();
    if bytes > FRAGMENT {
        return Err("a fragment that is too long");
    }
    if !bytes.is_multiple_of(signature.dtype.size()) {
        return Err("a fragment with a part of an element");
    }
    let header = FragmentHeader {
        group: message.group,
        seq: message.seq,
        lane: message.lane,
        slot: short(message.slot)?,
        from: short(message.from)?,
        to: short(message.to)?,
        bytes: bytes as u32,
        offset: message.offset,
        signature,
    };
    Ok((header, message.payload))
}

/// Entry point of the fuzzer: any bytes as a message of a peer.
///
/// # Panics
/// If a decoded fragment changes when it is encoded and decoded again.
#[doc(hidden)]
pub fn feed(data: &[u8]) {
    use prost::Message;

    let Ok(received) = generated::Fragment::decode(data) else { return };
    let Ok((header, payload)) = fragment(received) else { return };
    let again = message(&header, payload.clone()).encode_to_vec();
    let again = generated::Fragment::decode(&again[..]).map(fragment);
    assert_eq!(again, Ok(Ok((header, payload))));
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn any_header() -> impl Strategy<Value = (FragmentHeader, Vec<u8>)> {
        let numbers = (any::<[u32; 4]>(), any::<[u16; 4]>(), any::<[u64; 2]>());
        let codes = (0..Collective::ALL.len(), 0..16u8, 0..16u8);
        (numbers, codes, vec(any::<u8>(), 0..200)).prop_filter_map(
            "no type has this code",
            |(numbers, codes, payload)| {
                let ([group, seq, lane, plan], [slot, from, to, root], [offset, count]) = numbers;
                let (dtype, op) = (Dtype::from_code(codes.1)?, ReduceOp::from_code(codes.2)?);
                let payload = payload[..payload.len() / dtype.size() * dtype.size()].to_vec();
                let signature = Signature { collective: Collective::ALL[codes.0], dtype, op, root, count, plan };
                let bytes = payload.len() as u32;
                Some((FragmentHeader { group, seq, lane, slot, from, to, bytes, offset, signature }, payload))
            },
        )
    }

    proptest! {
        #[test]
        fn fragments_come_as_they_went((header, payload) in any_header()) {
            let bytes = message(&header, payload.clone().into()).encode_to_vec();
            let received = fragment(generated::Fragment::decode(&bytes[..]).unwrap());
            prop_assert_eq!(received, Ok((header, payload.into())));
        }

        #[test]
        fn any_bytes_are_survived((header, payload) in any_header(), at in any::<prop::sample::Index>(), byte: u8, noise in vec(any::<u8>(), 0..200)) {
            feed(&noise);
            let mut bytes = message(&header, payload.into()).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            feed(&bytes);
            feed(&bytes[..at]);
        }

        #[test]
        fn numbers_that_do_not_fit_are_refused((header, payload) in any_header(), which in 0..7_usize, far in (1u32 << 16)..) {
            let mut bad = message(&header, payload.into());
            let signature = bad.signature.as_mut().unwrap();
            let numbers: [&mut u32; 7] = [
                &mut bad.slot, &mut bad.from, &mut bad.to,
                &mut signature.root, &mut signature.call, &mut signature.dtype, &mut signature.op,
            ];
            for (place, number) in numbers.into_iter().enumerate() {
                if place == which {
                    *number = far;
                }
            }
            prop_assert!(fragment(bad).is_err());
        }
    }

    #[test]
    fn long_ones_and_parts_of_elements_are_refused() {
        let signature = Signature {
            collective: Collective::AllReduce,
            dtype: Dtype::Float32,
            op: ReduceOp::Sum,
            root: 0,
            count: 1,
            plan: 0,
        };
        let header =
            FragmentHeader { group: 0, seq: 0, lane: 0, slot: 0, from: 0, to: 1, bytes: 0, offset: 0, signature };
        let with = |bytes: usize| fragment(message(&header, vec![0; bytes].into())).map(|(header, _)| header.bytes);
        assert_eq!(with(FRAGMENT), Ok(FRAGMENT as u32));
        assert_eq!(with(FRAGMENT + 4), Err("a fragment that is too long"));
        assert_eq!(with(6), Err("a fragment with a part of an element"));
        let unsigned = generated::Fragment { signature: None, ..message(&header, Bytes::new()) };
        assert_eq!(fragment(unsigned), Err("a fragment without a signature"));
    }
}
