// Stores in JavaScript, in their default settings. Arguments: run NAME COUNT, check NAME,
// version NAME.
const fs = require('fs');

const value = (n) => `value${n}.`.repeat(300);

const nedb = {
  package: '@seald-io/nedb',
  async open() {
    const Datastore = require('@seald-io/nedb');
    this.db = new Datastore({ filename: 'zoo.db' });
    await this.db.loadDatabaseAsync();
  },
  async put(n) {
    await this.db.insertAsync({ _id: `key${n}`, value: value(n) });
    // The file is written anew.
    if (n % 2 === 1) await this.db.compactDatafileAsync();
  },
  async get(n) {
    const found = await this.db.findOneAsync({ _id: `key${n}` });
    return found && found.value;
  },
};

// One file with all keys, replaced each time.
const atomic = {
  package: 'write-file-atomic',
  async open() {
    this.all = fs.existsSync('zoo.json') ? JSON.parse(fs.readFileSync('zoo.json')) : {};
  },
  async put(n) {
    this.all[n] = value(n);
    await require('write-file-atomic')('zoo.json', JSON.stringify(this.all));
  },
  async get(n) {
    return this.all[n];
  },
};

const stores = { nedb, 'write-file-atomic': atomic };

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
    process.exit(0);
  }
  const promised = Number(process.env.KEDGE_ACKED_COUNT);
  for (let n = 0; n < promised + 2; n++) {
    const found = await store.get(n);
    // With "sound", what was replaced may be older; it may not be damaged.
    if (!found && n < promised && count !== 'sound') throw new Error(`key ${n} was promised and is not there`);
    if (found && found !== value(n)) throw new Error(`key ${n} has a wrong value`);
  }
}

main().catch((error) => {
  console.log(String(error.message || error).split('\n')[0]);
  process.exit(1);
});
