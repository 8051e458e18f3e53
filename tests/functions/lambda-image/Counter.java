package sample;

import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.security.SecureRandom;
import java.util.Map;
import java.util.UUID;

/** A handler with state: of its beginning, of its calls, and what no two copies may share. */
public class Counter implements RequestHandler<Object, Map<String, Object>> {
    private static final UUID BEGUN = UUID.randomUUID();
    private final SecureRandom random = new SecureRandom();
    private int calls;

    @Override
    public Map<String, Object> handleRequest(Object event, Context context) {
        calls++;
        return Map.of(
            "begun", BEGUN.toString(),
            "calls", calls,
            "id", UUID.randomUUID().toString(),
            "random", random.nextLong(),
            "handler", String.valueOf(System.getenv("_HANDLER")),
            "folder", System.getProperty("user.dir"),
            "request", context.getAwsRequestId());
    }
}
