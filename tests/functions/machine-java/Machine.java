// Answers with the size of the machine that it takes this to be.
import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;

class Machine {
    public static void main(String[] arguments) throws Exception {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.createContext("/", exchange -> {
            var runtime = Runtime.getRuntime();
            byte[] body = "{\"heap_mib\": %d, \"processors\": %d, \"host\": \"%s\", \"user\": \"%s\"}".formatted(
                runtime.maxMemory() >> 20, runtime.availableProcessors(),
                InetAddress.getLocalHost().getHostName(), System.getProperty("user.name")).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
