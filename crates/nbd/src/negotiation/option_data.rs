//! What options carry: the name of an export, and what is asked of it. A length that leads out of the option, or stops short of its end,
//! makes it malformed.

use crate::wire::{ALLOCATION_CONTEXT, FieldReader};

/// Of NBD_OPT_INFO and NBD_OPT_GO.
#[derive(Debug)]
pub(super) struct ExportQuery<'a> {
    pub(super) name: &'a [u8],
    infos: Vec<u16>,
}

impl<'a> ExportQuery<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Option<ExportQuery<'a>> {
        let mut fields = FieldReader::new(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let infos = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
        fields.is_empty().then_some(ExportQuery { name, infos })
    }

    pub(super) fn wants(&self, info: u16) -> bool {
        self.infos.contains(&info)
    }
}

/// Of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
#[derive(Debug)]
pub(super) struct ContextQuery<'a> {
    pub(super) name: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> ContextQuery<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Option<ContextQuery<'a>> {
        let mut fields = FieldReader::new(data);
        let name = fields.string()?;
        // No capacity is taken on the client's word: each query that there is takes four bytes of the option.
        let mut queries = Vec::new();
        for _ in 0..fields.u32()? {
            queries.push(fields.string()?);
        }
        fields.is_empty().then_some(ContextQuery { name, queries })
    }

    /// Whether one of the queries is for the context itself.
    pub(super) fn selects_allocation(&self) -> bool {
        self.queries.contains(&ALLOCATION_CONTEXT.as_bytes())
    }

    /// Whether a list has it: of everything, of its namespace, or of itself.
    pub(super) fn lists_allocation(&self) -> bool {
        self.queries.is_empty() || self.queries.contains(&b"base:".as_slice()) || self.selects_allocation()
    }
}
