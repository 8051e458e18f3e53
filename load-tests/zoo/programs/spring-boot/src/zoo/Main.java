package zoo;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** Items in memory, by Spring. */
@RestController
@SpringBootApplication
public class Main {
    private final List<String> items = new CopyOnWriteArrayList<>();

    @GetMapping("/")
    String hello() {
        return "hello of Spring Boot";
    }

    @GetMapping("/items")
    List<String> all() {
        return items;
    }

    @PostMapping("/items/{name}")
    List<String> add(@PathVariable("name") String name) {
        items.add(name);
        return items;
    }

    public static void main(String[] args) {
        SpringApplication application = new SpringApplication(Main.class);
        application.setDefaultProperties(Map.of("server.port", System.getenv("PORT"), "server.address", "127.0.0.1"));
        application.run(args);
    }
}
