// Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.security.KeyPairGenerator;
import java.security.SecureRandom;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;

class Unlike {
    static final SecureRandom SECURE = new SecureRandom();
    static final Random HELD = new Random();

    static String draw() throws Exception {
        Map<String, Object> drawn = new LinkedHashMap<>();
        drawn.put("SecureRandom", SECURE.nextLong());
        drawn.put("a new SecureRandom", new SecureRandom().nextLong());
        drawn.put("UUID.randomUUID", UUID.randomUUID());
        drawn.put("ec", KeyPairGenerator.getInstance("EC").generateKeyPair().getPrivate().hashCode());
        drawn.put("Math.random", Math.random());
        drawn.put("ThreadLocalRandom", ThreadLocalRandom.current().nextLong());
        drawn.put("Random", HELD.nextLong());
        return drawn.entrySet().stream().map(e -> "\"" + e.getKey() + "\": \"" + e.getValue() + "\"")
            .collect(Collectors.joining(", ", "{", "}"));
    }

    public static void main(String[] arguments) throws Exception {
        draw();
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.createContext("/", exchange -> {
            try {
                byte[] body = draw().getBytes();
                exchange.sendResponseHeaders(200, body.length);
                exchange.getResponseBody().write(body);
                exchange.close();
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
        });
        server.start();
    }
}
