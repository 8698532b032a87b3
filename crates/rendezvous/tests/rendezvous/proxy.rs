//! A man in the middle between a rank and rank 0, who listens in or cuts the connection.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// The bytes that callers sent, by connection.
pub type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// Listens and forwards to `target`. `cut` gives for each connection, by number, after how many bytes of the caller it
/// is cut. The threads end with the connections, or with the process.
pub fn proxy(target: String, cut: fn(usize) -> Option<usize>) -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    thread::spawn(move || {
        for caller in listener.incoming() {
            let mut caller = caller.unwrap();
            let Ok(mut host) = TcpStream::connect(target.as_str()) else { continue };
            let number = log.lock().unwrap().len();
            log.lock().unwrap().push(Vec::new());
            let (mut from_host, mut to_caller) = (host.try_clone().unwrap(), caller.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from_host, &mut to_caller);
                let _ = to_caller.shutdown(Shutdown::Write);
            });
            let log = Arc::clone(&log);
            thread::spawn(move || {
                let mut left = cut(number).unwrap_or(usize::MAX);
                let mut buffer = [0; 4096];
                while left > 0 {
                    let most = left.min(buffer.len());
                    let Ok(count @ 1..) = caller.read(&mut buffer[..most]) else { break };
                    log.lock().unwrap()[number].extend(&buffer[..count]);
                    if host.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                    left -= count;
                }
                if left == 0 {
                    // Until the last message of the handshake has been forwarded.
                    thread::sleep(std::time::Duration::from_millis(50));
                }
                let _ = (host.shutdown(Shutdown::Both), caller.shutdown(Shutdown::Both));
            });
        }
    });
    (address, heard)
}
