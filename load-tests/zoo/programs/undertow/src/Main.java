import io.undertow.Handlers;
import io.undertow.Undertow;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.ArrayList;
import java.util.List;

/** Items in a database of H2, by Undertow. */
public class Main {
    public static void main(String[] args) throws Exception {
        Connection database = DriverManager.getConnection("jdbc:h2:/tmp/items");
        database.createStatement().execute("CREATE TABLE items (name VARCHAR)");
        Undertow.builder()
            .addHttpListener(Integer.parseInt(System.getenv("PORT")), "127.0.0.1")
            .setHandler(Handlers.routing()
                .get("/", exchange -> exchange.getResponseSender().send("hello of Undertow"))
                .get("/items", exchange -> {
                    List<String> items = new ArrayList<>();
                    var rows = database.createStatement().executeQuery("SELECT name FROM items");
                    while (rows.next()) {
                        items.add(rows.getString(1));
                    }
                    exchange.getResponseSender().send(items.toString());
                })
                .post("/items/{name}", exchange -> {
                    var insert = database.prepareStatement("INSERT INTO items VALUES (?)");
                    insert.setString(1, exchange.getQueryParameters().get("name").getFirst());
                    insert.execute();
                    exchange.getResponseSender().send("added");
                }))
            .build()
            .start();
    }
}
