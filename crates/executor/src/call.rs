//! Calls of this process, to be compared with the calls that fragments of other ranks name. A fragment may arrive after the
//! operation is complete here, if none of its steps waited for the rank that sent it.
use std::collections::VecDeque;
use std::ops::Range;

use paceline_transport::error::RunError;
use paceline_transport::header::{FragmentHeader, Signature};

use super::group_view::GroupView;

/// Complete operations that a communicator remembers.
const REMEMBERED: usize = 512;

/// An operation as this process called it.
pub(super) struct Call {
    pub seq: u32,
    pub signature: Signature,
    pub label: String,
    /// The first role of this process.
    pub me: u32,
    /// The roles that are servers.
    pub servers: Range<u32>,
    pub point_to_point: bool,
}

impl Call {
    /// The error for a fragment that does not belong to this call: this process `expects` something else of its sender.
    pub fn mismatch(&self, expects: &Signature, header: &FragmentHeader, view: &GroupView<'_>) -> RunError {
        let name = |role: u32| match (self.servers.contains(&role), view.host(role)) {
            (true, host) => format!("server {} (rank {host})", role - self.servers.start),
            (false, host) => format!("rank {host}"),
        };
        let (them, me) = (name(u32::from(header.from)), name(self.me));
        let (theirs, mine) = (&header.signature, expects);
        if self.point_to_point {
            let (theirs, mine) = (theirs.describe(), mine.describe());
            let message = format!("{them} sends {theirs} under tag {}, but {me} receives {mine}", header.lane);
            return RunError::Failed(message).with_remedy("the same shape, dtype and tag on both ranks");
        }
        let (theirs, mine) = if theirs.whole() == mine.whole() && theirs.count != mine.count {
            (theirs.describe_part(&format!("for {me}")), mine.describe_part(&format!("from {them}")))
        } else {
            (theirs.whole().describe(), mine.whole().describe())
        };
        let what = view.naming.disagreed(self.signature.collective.name(), self.seq, &self.label);
        RunError::mismatch(&what, (&them, &theirs), (&me, &mine), self.signature.plan_differs())
    }
}

/// The last calls that are complete.
#[derive(Default)]
pub(super) struct Past(VecDeque<Call>);

impl Past {
    pub fn remember(&mut self, call: Call) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    /// The error for a late fragment of an operation that this process called differently. Nobody misses one that agrees.
    pub fn mismatch(&self, header: &FragmentHeader, view: &GroupView<'_>) -> Option<RunError> {
        let call = self.0.iter().rev().find(|call| call.seq == header.seq)?;
        (call.signature != header.signature).then(|| call.mismatch(&call.signature, header, view))
    }
}
