//! The tree as bytes, as segment tables carry it. `docs/store-format.md`, "Catalogue".

use std::collections::BTreeMap;

use strongroom_block::VolumeId;

use super::{Branch, Catalogue, Node, NodeId, OPEN, SPANS_MAX, Snapshot, Span};
use crate::layout::{COUNTER_MAX, SEQUENCE_MAX};
use crate::op::Op;

/// Upper bound on the bytes of a catalogue.
pub(crate) const CATALOGUE_BYTES_MAX: usize = 1 << 20;

impl Catalogue {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.next_node);
        put(&mut out, u64::from(self.next_branch));
        put(&mut out, self.nodes.len() as u64);
        for (&id, node) in &self.nodes {
            put(&mut out, id);
            put(&mut out, node.parent.unwrap_or(0));
            put(&mut out, u64::from(node.branch));
        }
        put(&mut out, self.spans.len() as u64);
        for (&(branch, from), span) in &self.spans {
            for number in [u64::from(branch), from, span.to, span.node] {
                put(&mut out, number);
            }
        }
        put(&mut out, self.branches.len() as u64);
        for (&id, branch) in &self.branches {
            for number in [u64::from(id), branch.node, branch.from, branch.created, branch.receiving] {
                put(&mut out, number);
            }
            out.extend_from_slice(&branch.volume_id.0);
            put_name(&mut out, &branch.name);
        }
        put(&mut out, self.snapshots.len() as u64);
        for snapshot in &self.snapshots {
            let branch = u64::from(snapshot.branch);
            for number in [snapshot.id, snapshot.node, branch, snapshot.sequence, snapshot.created] {
                put(&mut out, number);
            }
            put_name(&mut out, &snapshot.name);
        }
        out
    }

    /// From its bytes. `None` if they are not a possible tree.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Catalogue> {
        let mut reader = Reader(bytes);
        let next_node = reader.number()?;
        let next_branch = reader.small()?;
        let mut nodes = BTreeMap::new();
        for _ in 0..reader.count(SPANS_MAX)? {
            let (id, parent, branch) = (reader.number()?, reader.number()?, reader.small()?);
            // Parents come first: so there are no circles.
            let parent = Some(parent).filter(|&parent| parent != 0);
            if parent.is_some_and(|parent| !nodes.contains_key(&parent)) || !(1..next_node).contains(&id) {
                return None;
            }
            if nodes.last_key_value().is_some_and(|(&last, _)| last >= id) {
                return None;
            }
            nodes.insert(id, Node { parent, branch });
        }
        let known = |node: &NodeId| nodes.contains_key(node);
        let spans = reader.spans()?;
        let branches = reader.branches()?;
        let snapshots = reader.snapshots()?;
        let refers = spans.values().map(|span| &span.node).chain(branches.values().map(|branch| &branch.node));
        let whole = refers.chain(snapshots.iter().map(|snapshot| &snapshot.node)).all(known)
            && next_node < COUNTER_MAX
            && branches.get(&0).is_some_and(|volume| volume.receiving == 0)
            && branches.last_key_value().is_some_and(|(&last, _)| last < next_branch)
            && branches.iter().all(|(&id, branch)| {
                let open = spans.range((id, 0)..=(id, u64::MAX)).next_back();
                open.is_some_and(|(_, span)| span.to == OPEN && span.node == branch.node)
            });
        (whole && reader.0.is_empty()).then_some(Catalogue {
            nodes,
            spans,
            snapshots,
            branches,
            next_node,
            next_branch,
        })
    }
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    put(out, name.len() as u64);
    out.extend_from_slice(name.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*head))
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn count(&mut self, most: usize) -> Option<u64> {
        self.number().filter(|&count| count <= most as u64)
    }

    fn name(&mut self) -> Option<String> {
        let len = self.count(Op::NAME_BYTES_MAX)? as usize;
        let (name, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        let name = std::str::from_utf8(name).ok()?;
        (!name.chars().any(char::is_control)).then(|| name.to_owned())
    }

    fn spans(&mut self) -> Option<BTreeMap<(u32, u64), Span>> {
        let mut spans: BTreeMap<(u32, u64), Span> = BTreeMap::new();
        for _ in 0..self.count(SPANS_MAX)? {
            let (branch, from) = (self.small()?, self.number()?);
            let span = Span { to: self.number()?, node: self.number()? };
            let after = spans
                .last_key_value()
                .is_none_or(|(last, before)| last.0 < branch || last.0 == branch && before.to <= from);
            // No sequence is so large: what is written next would belong to no node.
            let possible = from < SEQUENCE_MAX && (span.to < SEQUENCE_MAX || span.to == OPEN);
            if from >= span.to || !after || !possible {
                return None;
            }
            spans.insert((branch, from), span);
        }
        Some(spans)
    }

    fn branches(&mut self) -> Option<BTreeMap<u32, Branch>> {
        let mut branches = BTreeMap::new();
        for _ in 0..self.count(Op::CLONES_MAX + 1)? {
            let id = self.small()?;
            let (node, from, created, receiving) = (self.number()?, self.number()?, self.number()?, self.number()?);
            let (volume_id, rest) = self.0.split_first_chunk::<16>()?;
            self.0 = rest;
            let volume_id = VolumeId(*volume_id);
            let branch = Branch { node, from, created, volume_id, name: self.name()?, receiving };
            branches.insert(id, branch).is_none().then_some(())?;
        }
        Some(branches)
    }

    fn snapshots(&mut self) -> Option<Vec<Snapshot>> {
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for _ in 0..self.count(Op::SNAPSHOTS_MAX)? {
            let (id, node, branch) = (self.number()?, self.number()?, self.small()?);
            let (sequence, created, name) = (self.number()?, self.number()?, self.name()?);
            if snapshots.iter().any(|snapshot| snapshot.id == id || snapshot.name == name) {
                return None;
            }
            snapshots.push(Snapshot { id, node, branch, sequence, created, name });
        }
        Some(snapshots)
    }
}
