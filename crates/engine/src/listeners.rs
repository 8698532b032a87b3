//! Registry of coordinators that are told what happens to their group.
use std::collections::HashMap;

use paceline_os::sync::Weak;
use paceline_transport::error::RunError;

/// Events for a coordinator. A listener must not block or call back.
#[derive(Clone, Debug)]
pub enum News {
    /// Another rank has begun this cycle.
    Invited(u64),
    /// A rank has left the job: which one went first, and how.
    Left(String),
    /// The group has failed.
    Failed(RunError),
}

/// Receives what happens to a group.
pub trait Listener: Send + Sync {
    /// Called for each event.
    fn notify(&self, news: News);
}

/// By group.
#[derive(Default)]
pub(super) struct Listeners {
    known: HashMap<u32, Weak<dyn Listener>>,
    /// Invitations to groups without a listener yet: another rank may finish making the group earlier.
    early: HashMap<u32, u64>,
}

impl Listeners {
    pub fn add(&mut self, group: u32, listener: Weak<dyn Listener>) {
        if let (Some(cycle), Some(listener)) = (self.early.remove(&group), listener.upgrade()) {
            listener.notify(News::Invited(cycle));
        }
        self.known.insert(group, listener);
    }

    pub fn remove(&mut self, group: u32) {
        self.known.remove(&group);
    }

    pub fn invited(&mut self, group: u32, cycle: u64) {
        if self.known.contains_key(&group) {
            self.tell(group, &News::Invited(cycle));
        } else {
            self.early.insert(group, cycle);
        }
    }

    pub fn tell(&self, group: u32, news: &News) {
        if let Some(listener) = self.known.get(&group).and_then(Weak::upgrade) {
            listener.notify(news.clone());
        }
    }

    pub fn tell_all(&self, news: &News) {
        self.known.values().filter_map(Weak::upgrade).for_each(|listener| listener.notify(news.clone()));
    }
}
