import io.javalin.Javalin;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Items in memory, by Javalin. */
public class Main {
    public static void main(String[] args) {
        List<String> items = new CopyOnWriteArrayList<>();
        Javalin.create(config -> config.showJavalinBanner = false)
            .get("/", context -> context.result("hello of Javalin"))
            .get("/items", context -> context.result(items.toString()))
            .post("/items/{name}", context -> {
                items.add(context.pathParam("name"));
                context.result(items.toString());
            })
            .start("127.0.0.1", Integer.parseInt(System.getenv("PORT")));
    }
}
