// Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.security.KeyPairGenerator;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

class Unlike {
    static final SecureRandom SECURE = new SecureRandom();
    static final SecureRandom SHA1 = of("SHA1PRNG");
    static final SecureRandom DRBG = of("DRBG");
    static final Random HELD = new Random();
    static final Random SEEDED = new Random(42);
    static final ExecutorService THREAD = Executors.newSingleThreadExecutor();

    static SecureRandom of(String algorithm) {
        try {
            return SecureRandom.getInstance(algorithm);
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }

    static String draw() throws Exception {
        List<Integer> shuffled = new ArrayList<>(IntStream.range(0, 40).boxed().toList());
        Collections.shuffle(shuffled);
        var file = Files.createTempFile("", "");
        Files.delete(file);
        Map<String, Object> drawn = new LinkedHashMap<>();
        drawn.put("SecureRandom", SECURE.nextLong());
        drawn.put("a new SecureRandom", new SecureRandom().nextLong());
        drawn.put("SHA1PRNG", SHA1.nextLong());
        drawn.put("a new SHA1PRNG", of("SHA1PRNG").nextLong());
        drawn.put("DRBG", DRBG.nextLong());
        drawn.put("UUID.randomUUID", UUID.randomUUID());
        drawn.put("ec", KeyPairGenerator.getInstance("EC").generateKeyPair().getPrivate().hashCode());
        drawn.put("Files.createTempFile", file.getFileName());
        drawn.put("Math.random", Math.random());
        drawn.put("Collections.shuffle", shuffled);
        drawn.put("ThreadLocalRandom", ThreadLocalRandom.current().nextLong());
        drawn.put("ThreadLocalRandom in a thread", THREAD.submit(() -> ThreadLocalRandom.current().nextLong()).get());
        drawn.put("ThreadLocalRandom in a new thread", inANewThread());
        drawn.put("a new SplittableRandom", new SplittableRandom().nextLong());
        drawn.put("a new Random", new Random().nextLong());
        drawn.put("a Random that is held", HELD.nextLong());
        drawn.put("Random(42)", SEEDED.nextLong());
        return drawn.entrySet().stream().map(e -> "\"" + e.getKey() + "\": \"" + e.getValue() + "\"")
            .collect(Collectors.joining(", ", "{", "}"));
    }

    static long inANewThread() throws Exception {
        long[] drawn = new long[1];
        Thread thread = new Thread(() -> drawn[0] = ThreadLocalRandom.current().nextLong());
        thread.start();
        thread.join();
        return drawn[0];
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
