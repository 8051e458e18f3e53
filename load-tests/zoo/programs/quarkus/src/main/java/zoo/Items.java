package zoo;

import jakarta.ws.rs.GET;
import jakarta.ws.rs.POST;
import jakarta.ws.rs.Path;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Items in memory, by Quarkus. */
@Path("/")
public class Items {
    private static final List<String> ITEMS = new CopyOnWriteArrayList<>();

    @GET
    public String hello() {
        return "hello of Quarkus";
    }

    @GET
    @Path("items")
    public String all() {
        return ITEMS.toString();
    }

    @POST
    @Path("items/{name}")
    public String add(@jakarta.ws.rs.PathParam("name") String name) {
        ITEMS.add(name);
        return ITEMS.toString();
    }
}
