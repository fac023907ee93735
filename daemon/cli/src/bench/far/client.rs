//! `ringway bench --client`: the server as the program that measures has it.

use std::{
    cell::RefCell,
    net::{IpAddr, TcpStream, ToSocketAddrs as _},
    rc::Rc,
    time::Duration,
};

use super::{Command, FarKind, Greeting, Order, PORT, Reply, Request, Welcome, connection::Connection};
use crate::bench::{end::Answer, end_process::PATIENCE, interrupt::Interrupt};

/// How long connecting and greeting may take.
const CONNECTING: Duration = Duration::from_secs(10);
/// How much longer than an end a server may take to answer.
const MORE: Duration = Duration::from_secs(10);

/// A server that serves this program. Clones are the same.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Far {
    talk: Rc<RefCell<Talk>>,
    pub(in crate::bench) welcome: Welcome,
    /// The addresses of both ends of the connection, between which everything is measured.
    pub(in crate::bench) local: IpAddr,
    pub(in crate::bench) remote: IpAddr,
    pub(in crate::bench) mtu_bytes: Option<u32>,
}

#[derive(Debug)]
struct Talk {
    connection: Connection,
    /// Of the request sent last.
    number: u64,
    ends: u32,
    interrupt: Interrupt,
    /// Why nothing can be asked any more.
    lost: Option<String>,
}

/// An end on the server's machine.
#[derive(Debug)]
pub(in crate::bench) struct FarEnd {
    talk: Rc<RefCell<Talk>>,
    end: u32,
    open: Option<Order>,
    /// Of the request that the next answer is to.
    number: u64,
}

impl Far {
    /// Connects to `HOST` or `HOST:PORT`.
    pub(in crate::bench) fn connect(host: &str, interrupt: &Interrupt) -> Result<Self, String> {
        let mut connection = reach(host)?;
        let gone = || "it hung up without a greeting".to_owned();
        let mut greet = || {
            let greeting = connection.receive::<Greeting>(CONNECTING, interrupt)?.ok_or_else(gone)?;
            connection.send(&Greeting::own(None))?;
            greeting.check()?;
            connection.receive::<Welcome>(CONNECTING, interrupt)?.ok_or_else(gone)
        };
        let welcome = greet().map_err(|why| format!("the server at {host}: {why}"))?;
        let (local, remote, mtu_bytes) = (connection.local, connection.peer.ip(), connection.mtu_bytes());
        let talk = Talk { connection, number: 0, ends: 0, interrupt: interrupt.clone(), lost: None };
        Ok(Self { talk: Rc::new(RefCell::new(talk)), welcome, local, remote, mtu_bytes })
    }

    /// Whether processes of both programs can share memory.
    pub(in crate::bench) fn is_here(&self) -> bool {
        ringway_service::place().is_ok_and(|place| place == self.welcome.place)
    }

    /// The far end of a path, not opened yet.
    pub(in crate::bench) fn end(&self, path: &str, kind: FarKind) -> FarEnd {
        let mut talk = self.talk.borrow_mut();
        talk.ends += 1;
        let end = talk.ends;
        let open = Some(Order::Open { end, path: path.to_owned(), kind });
        FarEnd { talk: Rc::clone(&self.talk), end, open, number: 0 }
    }

    /// Why the server cannot be asked any more, if so.
    pub(in crate::bench) fn lost(&self) -> Option<String> {
        self.talk.borrow().lost.clone()
    }
}

fn reach(host: &str) -> Result<Connection, String> {
    let bare = host.parse::<IpAddr>().map(|ip| (ip, PORT).into());
    let addresses = match bare {
        Ok(address) => Ok(vec![address]),
        Err(_) => host
            .to_socket_addrs()
            .or_else(|_| (host, PORT).to_socket_addrs())
            .map(Iterator::collect::<Vec<std::net::SocketAddr>>),
    };
    let addresses = addresses.map_err(|e| format!("`{host}` is no host that can be found: {e}"))?;
    let mut why = format!("`{host}` has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            Ok(stream) => return Connection::new(stream),
            Err(error) => {
                why = format!(
                    "cannot reach a server at {address}: {error}; is `ringway bench --server --listen {}` running there?",
                    address.ip()
                );
            }
        }
    }
    Err(why)
}

impl Talk {
    fn send(&mut self, order: Order) -> Result<u64, String> {
        if let Some(why) = &self.lost {
            return Err(why.clone());
        }
        self.number += 1;
        let number = self.number;
        self.connection.send(&Request { number, order }).map_err(|why| self.lose(&why))?;
        Ok(number)
    }

    /// The reply to the request of this number; replies to earlier ones, which nobody waited for, are passed over.
    fn receive(&mut self, number: u64) -> Result<Answer, String> {
        if let Some(why) = &self.lost {
            return Err(why.clone());
        }
        loop {
            match self.connection.receive::<Reply>(PATIENCE + MORE, &self.interrupt) {
                Ok(Some(reply)) if reply.number < number => {}
                Ok(Some(reply)) => return Ok(reply.answer),
                Ok(None) => return Err(self.lose("it has gone")),
                Err(_) if self.interrupt.came() => return Err("interrupted".to_owned()),
                Err(why) => return Err(self.lose(&why)),
            }
        }
    }

    /// Nothing between the two machines can be measured any more.
    fn lose(&mut self, why: &str) -> String {
        let why = format!("the server at {}: {why}", self.connection.peer);
        self.lost = Some(why.clone());
        self.interrupt.raise();
        why
    }
}

impl FarEnd {
    pub(in crate::bench) fn open(&mut self) -> Result<(), String> {
        let order = self.open.take().ok_or("opened twice")?;
        self.number = self.talk.borrow_mut().send(order)?;
        Ok(())
    }

    pub(in crate::bench) fn tell(&mut self, command: &Command) -> Result<(), String> {
        let order = Order::Tell { end: self.end, command: command.clone() };
        self.number = self.talk.borrow_mut().send(order)?;
        Ok(())
    }

    pub(in crate::bench) fn answer(&self) -> Result<Answer, String> {
        match self.talk.borrow_mut().receive(self.number)? {
            Answer::Failed(why) => Err(format!("at the server: {why}")),
            answer => Ok(answer),
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        // A server that has gone has ended it.
        let mut talk = self.talk.borrow_mut();
        if talk.lost.is_none() {
            let _ = talk.send(Order::Close { end: self.end });
        }
    }
}
