//! The field with 256 elements in which parity is computed: bytes, added by exclusive or, multiplied modulo x^8 + x^4 + x^3 + x^2 + 1.

/// What stands in front of a quantum, and the quantum.
pub(super) type Shard = [Vec<u8>; 2];

/// Adds bytes to as many.
pub(super) fn add(sum: &mut [u8], part: &[u8]) {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum ^= part);
}

/// Adds `factor` times bytes to as many.
pub(super) fn add_scaled(sum: &mut [u8], part: &[u8], factor: u8) {
    if factor == 1 {
        return add(sum, part);
    }
    let table = multiples(factor);
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum ^= table[usize::from(*part)]);
}

/// Multiplies every byte by `factor`. In place: a copy of the entry, which may hold a block key, would have to be wiped.
pub(super) fn scale(shard: &mut Shard, factor: u8) {
    let table = multiples(factor);
    shard.iter_mut().flatten().for_each(|byte| *byte = table[usize::from(*byte)]);
}

/// Doubles every byte.
pub(super) fn double(bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        let value = u64::from_ne_bytes(*word);
        let high = value & 0x8080_8080_8080_8080;
        *word = (((value ^ high) << 1) ^ ((high >> 7) * 0x1d)).to_ne_bytes();
    }
    rest.iter_mut().for_each(|byte| *byte = product(*byte, 2));
}

/// 2 to the power of `exponent`.
pub(super) fn power(exponent: u32) -> u8 {
    (0..exponent).fold(1, |value, _| product(value, 2))
}

pub(super) fn product(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a = (a << 1) ^ if a & 0x80 > 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// What `value`, which is not 0, gives 1 with: its 254th power.
pub(super) fn inverse(value: u8) -> u8 {
    (0..254).fold(1, |inverse, _| product(inverse, value))
}

pub(super) fn multiples(factor: u8) -> [u8; 256] {
    std::array::from_fn(|value| product(value as u8, factor))
}
