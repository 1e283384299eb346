//! Attacks on the control port of the agent, by programs that are no controllers.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::attacks::{AttackOutcome, Pace};
use crate::controller::Controller;
use crate::raw::tcp;
use crate::scene::Scene;
use crate::startup::poll_closed;
use crate::{PATIENCE, Result};

/// Maximum number of controllers of the agent.
const CONTROLLERS: usize = 64;

/// Number of strangers between two checks of the honest controllers.
const CHECK: usize = 100;

/// Request that a web page can make a browser send to any address, with two commands as its body.
const POST: &str = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://192.0.2.1\r\n\
    Content-Type: text/plain\r\nContent-Length: 94\r\n\r\n\
    {\"id\":1,\"cmd\":\"reg\",\"len\":1073741824,\"access\":\"lw,rw,rr\"}\n\
    {\"id\":2,\"cmd\":\"listen\",\"auto\":true}\n";

/// Sends the request of a web page, and checks that the agent refuses it and runs no command.
fn post(control: SocketAddr) -> Result<()> {
    let mut stream = tcp(control)?;
    stream.write_all(POST.as_bytes())?;
    let (mut said, mut buf) = (Vec::new(), [0; 1024]);
    loop {
        match stream.read(&mut buf) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&buf[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error.into()),
        }
    }
    let said = String::from_utf8_lossy(&said);
    let refusals = said.matches("\"ok\":false").count();
    if refusals != 1 || said.contains("\"ok\":true") {
        return Err(format!("the agent answered the request of a web page:\n{said}").into());
    }
    Ok(())
}

/// Checks that the application's controller is served, and a new one, too.
fn serves_controllers(scene: &mut Scene) -> Result<()> {
    let query = || json!({"cmd": "query"});
    scene.controller.command(query())?;
    let mut new = Controller::connect(scene.victim.control)?;
    new.command(query()).map(drop)
}

pub(crate) fn at_the_control_port(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let control = scene.victim.control;
    let mut silent = Vec::new();
    for index in &mut *pace {
        match index % 2 {
            0 => silent.push(tcp(control)?),
            _ => post(control)?,
        }
        if index % CHECK == CHECK - 1 {
            serves_controllers(scene)?;
        }
    }
    let load = pace.summary();
    let deadline = Instant::now() + PATIENCE;
    while silent.len() >= CONTROLLERS {
        let mut open = Vec::new();
        for mut stream in silent {
            if !poll_closed(&mut stream)? {
                open.push(stream);
            }
        }
        silent = open;
        if Instant::now() > deadline {
            return Err(format!("{} silent connections are still open", silent.len()).into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    serves_controllers(scene)?;
    Ok(AttackOutcome::new(
        load,
        "a web page gets one refusal, and no command of its request runs; of 64 controllers, a \
         silent one gives way to a new one; the application's controller and new ones are served",
    ))
}
