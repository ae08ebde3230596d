//! A database server on a mount. It runs as the user `postgres`, so the test must run as root.

use super::{Place, output_of, tool, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};

/// A PostgreSQL cluster with data checksums.
pub struct Postgres<'a> {
    place: &'a Place,
    programs: PathBuf,
    /// The directory of the cluster, below the test's directory.
    pub data: &'static str,
}

impl Postgres<'_> {
    /// Makes a cluster in `mnt/db`. The place must have a mount on `mnt`.
    #[track_caller]
    pub fn new(place: &Place) -> Postgres<'_> {
        let versions = fs::read_dir("/usr/lib/postgresql").map(|dir| dir.map(|e| e.unwrap().path()).max());
        let Ok(Some(version)) = versions else {
            panic!("PostgreSQL is not installed; on Debian, as root, run: apt-get install -y postgresql")
        };
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        for dir in ["mnt/db", "socket"] {
            fs::create_dir(place.path(dir)).unwrap();
            let mut command = place.command("chown");
            command.arg("postgres:postgres").arg(place.path(dir));
            tool(command, "coreutils");
        }
        let db = Postgres { place, programs: version.join("bin"), data: "mnt/db" };
        db.run("initdb", &["--data-checksums", "--auth=trust"]);
        db
    }

    /// A command that runs a program of PostgreSQL as its user.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.place.command("setpriv");
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        command.arg(self.programs.join(program)).env("PGHOST", self.place.path("socket"));
        command.env("PGUSER", "postgres").env("PGDATA", self.place.path(self.data)).env("LC_ALL", "C");
        command
    }

    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let mut command = self.command(program);
        command.args(args);
        tool(command, "postgresql")
    }

    pub fn sql(&self, sql: &str) -> String {
        self.run("psql", &["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", sql])
    }

    /// Starts the server, and waits until it has recovered.
    pub fn start(&self) -> Server {
        let socket = self.place.path("socket");
        let log = fs::File::create(self.place.path("postgres.log")).unwrap();
        let mut command = self.command("postgres");
        command
            .args(["-c", "listen_addresses=", "-c"])
            .arg(format!("unix_socket_directories={}", socket.display()));
        let mut server = Server(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        until("the server is ready", || {
            if let Some(status) = server.0.try_wait().unwrap() {
                panic!("{status}: {}", fs::read_to_string(self.place.path("postgres.log")).unwrap());
            }
            let mut ready = self.command("pg_isready");
            ready.arg("-q");
            output_of(ready).unwrap().status.success()
        });
        server
    }
}

/// A server that is killed on drop.
pub struct Server(pub Child);

impl Server {
    pub fn kill_9(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has usually ended already, and then this has no effect.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
