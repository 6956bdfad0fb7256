//! What one block costs on this machine, in nanoseconds: sealed and opened in either custody, wrapped for rest, and
//! framed by the channel. The table of docs/sealed-block.md; `make bench-sealing` or `cargo bench -p strongroom-lab`.

use std::sync::Arc;

use strongroom::best_ns;
use strongroom_block::{AttachId, BlockSize, Buffer, Lba, SealingDomain, Stamp, keyless_checksum};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind, Scheme};
use strongroom_seal::{
    BlindKeys, BlockKeyWrap, BlockKeys, CryptoCounters, KeyWrapper, SealContext, VolumeKey, WrappingKey,
};

const SIZES: [u64; 3] = [512, 4096, 65536];
const ROUNDS: u32 = 30;

fn main() {
    println!("Nanoseconds per block, best of {ROUNDS} rounds.\n");
    println!("| work | 512 B | 4096 B | 65536 B |\n|---|---|---|---|");
    row("keyless checksum alone", checksum);
    row("seal in place, blind custody", seal_blind);
    row("open out of place, blind custody", open_blind);
    row("seal in place, custody target", seal_own_key);
    row("open out of place, custody target", open_own_key);
    row("wrap a block key for rest", wrap);
    row("frame a sealed PDU (120-byte header), send", frame_sealed);
    row("frame a protected PDU (120-byte header), send", frame_protected);
}

fn row(name: &str, cost_ns: fn(BlockSize) -> f64) {
    let cells: String = SIZES
        .into_iter()
        .map(|bytes| format!(" {:.0} |", cost_ns(BlockSize::new(bytes).expect("a power of two"))))
        .collect();
    println!("| {name} |{cells}");
}

fn context(block_size: BlockSize) -> SealContext {
    SealContext::new(SealingDomain([1; 16]), block_size, 1)
}

fn counters() -> Arc<CryptoCounters> {
    Arc::new(CryptoCounters::new())
}

/// Stamps that count up, so that no nonce repeats.
fn stamps() -> impl FnMut() -> Stamp {
    let mut counter = 0;
    move || {
        counter += 1;
        Stamp { attach_id: AttachId([3; 16]), counter }
    }
}

fn blind(block_size: BlockSize) -> BlindKeys {
    BlindKeys::new(&VolumeKey::new([2; 32]), context(block_size), counters())
}

/// Batches of keys come from a counter: what the operating system's generator costs is measured elsewhere.
fn own_keys(block_size: BlockSize) -> BlockKeys {
    let mut next = 0u64;
    let fill = move |out: &mut [u8]| {
        for chunk in out.chunks_exact_mut(8) {
            next += 1;
            chunk.copy_from_slice(&next.to_be_bytes());
        }
    };
    BlockKeys::new(context(block_size), Box::new(fill), counters())
}

fn checksum(block_size: BlockSize) -> f64 {
    let block = vec![5; block_size.len()];
    best_ns(ROUNDS, || keyless_checksum(&block))
}

fn seal_blind(block_size: BlockSize) -> f64 {
    let (keys, mut next, mut block) = (blind(block_size), stamps(), vec![5; block_size.len()]);
    best_ns(ROUNDS, || keys.seal(Lba(7), next(), &mut block))
}

fn open_blind(block_size: BlockSize) -> f64 {
    let (keys, mut block, mut out) = (blind(block_size), vec![5; block_size.len()], vec![0; block_size.len()]);
    let record = keys.seal(Lba(7), stamps()(), &mut block);
    best_ns(ROUNDS, || keys.open_into(Lba(7), &record, &block, &mut out).expect("just sealed"))
}

fn seal_own_key(block_size: BlockSize) -> f64 {
    let (keys, mut next, mut block) = (own_keys(block_size), stamps(), vec![5; block_size.len()]);
    best_ns(ROUNDS, || keys.seal(Lba(7), next(), &mut block))
}

fn open_own_key(block_size: BlockSize) -> f64 {
    let (keys, mut block, mut out) = (own_keys(block_size), vec![5; block_size.len()], vec![0; block_size.len()]);
    let record = keys.seal(Lba(7), stamps()(), &mut block);
    best_ns(ROUNDS, || keys.open_into(Lba(7), &record, &block, &mut out).expect("just sealed"))
}

fn wrap(_: BlockSize) -> f64 {
    let wrapper = KeyWrapper::new(&WrappingKey::new([2; 32]), SealingDomain([1; 16]));
    best_ns(ROUNDS, || wrapper.wrap(&[9; 32]).expect("a key of 32 bytes wraps"))
}

fn frame_sealed(block_size: BlockSize) -> f64 {
    frame(FrameKind::Sealed, block_size)
}

fn frame_protected(block_size: BlockSize) -> f64 {
    frame(FrameKind::Protected, block_size)
}

fn frame(kind: FrameKind, block_size: BlockSize) -> f64 {
    let mut out = Vec::new();
    let mut channel =
        Channel::target(ChannelKeys::new([4; 32], Scheme::Lazy), ChannelLimits::default(), counters(), &mut out);
    let data = Buffer::copy_from(&vec![5; block_size.len()]);
    best_ns(ROUNDS, || {
        out.clear();
        channel.encode(kind, &[6; 120], data.clone(), &mut out).expect("within the limits");
    })
}
