//! Libraries' share of a link over TCP and RDMA. The constants are Python's (`paceline/catalog/channels.json`).
use paceline_model::cluster::Channel;

/// The constants: shares of a link, bits per second, and standard deviations of the logarithm of computation times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channels {
    /// The share of a link that TCP connections get together.
    pub tcp_share: f64,
    /// The same of RDMA.
    pub rdma_share: f64,
    /// The same of RDMA over converged Ethernet.
    pub rdma_share_roce: f64,
    /// The highest rate of links that are converged Ethernet.
    pub rdma_roce_to_bps: f64,
    /// Rate of one TCP connection on a link of `tcp_stream_at_bps`.
    pub tcp_stream_bps: f64,
    /// The link at which that was measured.
    pub tcp_stream_at_bps: f64,
    /// The same on a link of 100 Gbit/s.
    pub tcp_stream_100g_bps: f64,
    /// How much workers differ on nodes with TCP.
    pub tcp_jitter: f64,
    /// The same with RDMA.
    pub rdma_jitter: f64,
    /// The latency of RDMA, which NCCL's own figures contain.
    pub rdma_latency_s: f64,
}

impl Channels {
    /// The share of a link that many connections get together.
    #[must_use]
    pub fn share(&self, channel: Channel, link_bps: f64) -> f64 {
        match channel {
            Channel::Tcp => self.tcp_share,
            Channel::Rdma if link_bps <= self.rdma_roce_to_bps => self.rdma_share_roce,
            Channel::Rdma => self.rdma_share,
            Channel::Unknown | Channel::Auto => 1.0,
        }
    }

    /// The rate of one connection, if nothing else uses the link.
    ///
    /// A single TCP stream is limited by its sender's core, not by the wire: measured at 25 and 100 Gbit/s, interpolated
    /// between them.
    #[must_use]
    pub fn stream_bps(&self, channel: Channel, link_bps: f64) -> f64 {
        if channel != Channel::Tcp {
            return f64::INFINITY;
        }
        let (slow, fast) = (self.tcp_stream_at_bps, 100e9);
        let part = ((link_bps - slow) / (fast - slow)).clamp(0.0, 1.0);
        self.tcp_stream_bps + part * (self.tcp_stream_100g_bps - self.tcp_stream_bps)
    }

    /// How much workers differ.
    #[must_use]
    pub fn jitter(&self, channel: Channel) -> f64 {
        match channel {
            Channel::Tcp => self.tcp_jitter,
            Channel::Rdma => self.rdma_jitter,
            Channel::Unknown | Channel::Auto => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_stream_is_measured_at_two_rates_and_grows_with_the_link() {
        let channels = Channels {
            tcp_share: 0.9,
            rdma_share: 0.95,
            rdma_share_roce: 0.92,
            rdma_roce_to_bps: 50e9,
            tcp_stream_bps: 14e9,
            tcp_stream_at_bps: 25e9,
            tcp_stream_100g_bps: 30e9,
            tcp_jitter: 0.03,
            rdma_jitter: 0.01,
            rdma_latency_s: 2e-6,
        };
        let stream = |link| channels.stream_bps(Channel::Tcp, link);
        assert_eq!([1e9, 25e9, 62.5e9, 100e9, 400e9].map(stream), [14e9, 14e9, 22e9, 30e9, 30e9]);
        assert_eq!(channels.stream_bps(Channel::Rdma, 1e9), f64::INFINITY);
        let shares = [Channel::Tcp, Channel::Rdma, Channel::Unknown].map(|channel| channels.share(channel, 25e9));
        assert_eq!(shares, [0.9, 0.92, 1.0]);
        assert_eq!(channels.share(Channel::Rdma, 100e9), 0.95);
    }
}
