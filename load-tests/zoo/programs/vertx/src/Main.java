import io.vertx.core.Vertx;
import io.vertx.core.json.JsonArray;
import io.vertx.ext.web.Router;

/** Items in memory, by Vert.x. */
public class Main {
    public static void main(String[] args) {
        JsonArray items = new JsonArray();
        Vertx vertx = Vertx.vertx();
        Router router = Router.router(vertx);
        router.get("/").handler(context -> context.end("hello of Vert.x"));
        router.get("/items").handler(context -> context.json(items));
        router.post("/items/:name").handler(context -> context.json(items.add(context.pathParam("name"))));
        vertx.createHttpServer()
            .requestHandler(router)
            .listen(Integer.parseInt(System.getenv("PORT")), "127.0.0.1");
    }
}
