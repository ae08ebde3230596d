import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Collections;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StoredField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexNotFoundException;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TopDocs;
import org.apache.lucene.store.FSDirectory;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.Request;
import org.apache.zookeeper.server.ZKDatabase;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;
import org.apache.zookeeper.txn.CreateTxn;
import org.apache.zookeeper.txn.TxnHeader;

/** Stores in Java. Arguments: run NAME COUNT, check NAME, version NAME. */
public class Stores {
  interface Store {
    void put(int n) throws Exception;

    /** The value, or null. */
    String get(int n) throws Exception;
  }

  static String value(int n) {
    return ("value" + n + ".").repeat(150);
  }

  static class Lucene implements Store {
    final FSDirectory dir = FSDirectory.open(Paths.get("zoo"));
    final IndexWriter writer;

    Lucene() throws Exception {
      writer = new IndexWriter(dir, new IndexWriterConfig());
    }

    public void put(int n) throws Exception {
      Document document = new Document();
      document.add(new StringField("key", "key" + n, Field.Store.NO));
      document.add(new StoredField("value", value(n)));
      writer.addDocument(document);
      writer.commit();
    }

    public String get(int n) throws Exception {
      try (DirectoryReader reader = DirectoryReader.open(dir)) {
        IndexSearcher searcher = new IndexSearcher(reader);
        TopDocs found = searcher.search(new TermQuery(new Term("key", "key" + n)), 1);
        return found.scoreDocs.length == 0 ? null : searcher.storedFields().document(found.scoreDocs[0].doc).get("value");
      } catch (IndexNotFoundException e) {
        return null;
      }
    }
  }

  /** A table, each row a transaction of its own. */
  static class Jdbc implements Store {
    final Connection db;

    Jdbc(String url, String... setup) throws Exception {
      db = DriverManager.getConnection(url, "SA", "");
      try (Statement statement = db.createStatement()) {
        for (String line : setup) statement.execute(line);
        if (!db.getMetaData().getTables(null, null, "T", null).next()) {
          statement.execute("create table t (n integer primary key, v varchar(9000))");
        }
      }
    }

    public void put(int n) throws Exception {
      try (PreparedStatement insert = db.prepareStatement("insert into t values (?, ?)")) {
        insert.setInt(1, n);
        insert.setString(2, value(n));
        insert.execute();
      }
    }

    public String get(int n) throws Exception {
      try (Statement statement = db.createStatement();
          ResultSet rows = statement.executeQuery("select v from t where n = " + n)) {
        return rows.next() ? rows.getString(1) : null;
      }
    }
  }

  /** The log of a ZooKeeper server, which is read as the server does when it starts. */
  static class ZooKeeper implements Store {
    final ZKDatabase db;

    /** The server does not sync the snapshot that it takes when it starts. */
    ZooKeeper(boolean syncs) throws Exception {
      FileTxnSnapLog log = new FileTxnSnapLog(new File("zoo"), new File("zoo"));
      db = new ZKDatabase(log);
      db.loadDataBase();
      log.save(db.getDataTree(), db.getSessionWithTimeOuts(), syncs);
    }

    public void put(int n) throws Exception {
      TxnHeader header = new TxnHeader(1, n, n + 1, 1, ZooDefs.OpCode.create);
      CreateTxn create = new CreateTxn("/key" + n, value(n).getBytes(), Collections.emptyList(), false, n + 1);
      db.append(new Request(1, n, ZooDefs.OpCode.create, header, create, n + 1));
      db.commit();
    }

    public String get(int n) throws Exception {
      var node = db.getNode("/key" + n);
      return node == null ? null : new String(node.getData());
    }
  }

  static Store open(String name) throws Exception {
    switch (name) {
      case "lucene":
        return new Lucene();
      case "h2":
        return new Jdbc("jdbc:h2:./zoo;WRITE_DELAY=0");
      case "hsqldb":
        return new Jdbc("jdbc:hsqldb:file:zoo/db", "SET FILES WRITE DELAY FALSE");
      case "derby":
        return new Jdbc("jdbc:derby:zoo;create=true");
      case "zookeeper":
        return new ZooKeeper(true);
      case "zookeeper-as-server":
        return new ZooKeeper(false);
      default:
        throw new IllegalArgumentException("no such store: " + name);
    }
  }

  static void work(String[] words) throws Exception {
    String task = words[0];
    if (task.equals("version")) {
      Path lib = Paths.get(Stores.class.getProtectionDomain().getCodeSource().getLocation().toURI()).resolve("../lib");
      String prefix = words[1].equals("lucene") ? "lucene-core-" : words[1] + "-";
      try (var jars = Files.list(lib)) {
        jars.map(jar -> jar.getFileName().toString()).filter(jar -> jar.matches(prefix + "[0-9].*"))
            .forEach(jar -> System.out.println(jar.replace(prefix, "").replace(".jar", "")));
      }
      return;
    }
    Store store = open(words[1]);
    if (task.equals("run")) {
      for (int n = 0; n < Integer.parseInt(words[2]); n++) {
        store.put(n);
        System.out.println("ack " + n);
        System.out.flush();
      }
      return;
    }
    int promised = Integer.parseInt(System.getenv("KEDGE_ACKED_COUNT"));
    for (int n = 0; n < promised + 2; n++) {
      String found = store.get(n);
      if (found == null && n < promised) throw new Exception("key " + n + " was promised and is not there");
      if (found != null && !found.equals(value(n))) throw new Exception("key " + n + " has a wrong value");
    }
  }

  public static void main(String[] words) {
    int code = 0;
    try {
      work(words);
    } catch (Throwable e) {
      // The innermost cause says what is wrong.
      for (Throwable cause = e; cause != null; cause = cause.getCause()) {
        System.out.println(String.valueOf(cause).lines().findFirst().orElse(""));
      }
      code = 1;
    }
    // Without a close: power fails while a program runs.
    Runtime.getRuntime().halt(code);
  }
}
