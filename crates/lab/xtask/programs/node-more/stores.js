// Stores in JavaScript with native parts, or that are chosen for other reasons than those in
// node-stores. Arguments: run NAME COUNT, check NAME, version NAME.
const fs = require('fs');

const value = (n) => `value${n}.`.repeat(300);

const sqlite = {
  package: 'better-sqlite3',
  async open() {
    this.db = require('better-sqlite3')('zoo.db');
    this.db.pragma('journal_mode = WAL');
    this.db.pragma('synchronous = FULL');
    this.db.exec('create table if not exists t (n integer primary key, v text)');
  },
  async put(n) {
    this.db.prepare('insert into t values (?, ?)').run(n, value(n));
  },
  async get(n) {
    const found = this.db.prepare('select v from t where n = ?').get(n);
    return found && found.v;
  },
};

const level = {
  package: 'classic-level',
  async open() {
    const { ClassicLevel } = require('classic-level');
    this.db = new ClassicLevel('zoo');
    await this.db.open();
  },
  async put(n) {
    await this.db.put(`key${n}`, value(n), { sync: true });
  },
  async get(n) {
    return this.db.get(`key${n}`);
  },
};

const lmdb = {
  package: 'lmdb',
  async open() {
    // After a power failure the machine has another boot id, and only then are commits that were not
    // flushed left out by default. The check runs without a boot, so it asks for that.
    this.db = require('lmdb').open({ path: 'zoo', mapSize: 4 << 20, safeRestore: true });
  },
  async put(n) {
    await this.db.put(`key${n}`, value(n));
    await this.db.flushed;
  },
  async get(n) {
    return this.db.get(`key${n}`);
  },
};

const pouch = {
  package: 'pouchdb',
  async open() {
    const PouchDB = require('pouchdb');
    this.db = new PouchDB('zoo');
  },
  async put(n) {
    await this.db.put({ _id: `key${n}`, value: value(n) });
  },
  async get(n) {
    try {
      return (await this.db.get(`key${n}`)).value;
    } catch (error) {
      if (error.status === 404) return undefined;
      throw error;
    }
  },
};

// One file with all keys, replaced each time.
const low = {
  package: 'lowdb',
  async open() {
    const { JSONFilePreset } = await import('lowdb/node');
    this.db = await JSONFilePreset('zoo.json', { all: {} });
  },
  async put(n) {
    await this.db.update(({ all }) => {
      all[n] = value(n);
    });
  },
  async get(n) {
    return this.db.data.all[n];
  },
};

// The settings of Electron programs.
const conf = {
  package: 'conf',
  async open() {
    const { default: Conf } = await import('conf');
    this.db = new Conf({ cwd: '.', projectName: 'zoo' });
  },
  async put(n) {
    this.db.set(`key${n}`, value(n));
  },
  async get(n) {
    return this.db.get(`key${n}`);
  },
};

const stores = { 'better-sqlite3': sqlite, 'classic-level': level, lmdb, pouchdb: pouch, lowdb: low, conf };

async function main() {
  const [task, name, count] = process.argv.slice(2);
  const store = stores[name];
  if (task === 'version') {
    const path = `${__dirname}/node_modules/${store.package}/package.json`;
    console.log(JSON.parse(fs.readFileSync(path)).version);
    return;
  }
  if (task === 'run') process.chdir(process.env.KEDGE_DIR);
  await store.open();
  if (task === 'run') {
    for (let n = 0; n < Number(count); n++) {
      await store.put(n);
      fs.writeSync(1, `ack ${n}\n`);
    }
    // Without a close: power fails while a program runs.
    process.reallyExit(0);
  }
  const promised = Number(process.env.KEDGE_ACKED_COUNT);
  for (let n = 0; n < promised + 2; n++) {
    const found = await store.get(n);
    if (!found && n < promised) throw new Error(`key ${n} was promised and is not there`);
    if (found && found !== value(n)) throw new Error(`key ${n} has a wrong value`);
  }
  process.exit(0);
}

main().catch((error) => {
  console.log(String(error.message || error).split('\n')[0]);
  process.exit(1);
});
