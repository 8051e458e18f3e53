package sample;

import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.util.Map;
import org.crac.Core;
import org.crac.Resource;

/**
 * A handler behind AWS's own runtime interface client, unmodified: it would run on AWS Lambda, too. It greets, fails and
 * ends, as its event says.
 */
public class Greeter implements RequestHandler<Map<String, Object>, Map<String, Object>>, Resource {
    private int snapshots;
    private int restores;

    public Greeter() {
        Core.getGlobalContext().register(this);
    }

    @Override
    public void beforeCheckpoint(org.crac.Context<? extends Resource> context) {
        snapshots++;
    }

    @Override
    public void afterRestore(org.crac.Context<? extends Resource> context) {
        restores++;
    }

    @Override
    public Map<String, Object> handleRequest(Map<String, Object> event, Context context) {
        if (event.get("raise") instanceof String why) {
            throw new IllegalArgumentException(why);
        }
        if (event.get("exit") instanceof Number code) {
            System.exit(code.intValue());
        }
        Object query = event.getOrDefault("queryStringParameters", event);
        Object name = query instanceof Map<?, ?> fields ? fields.get("name") : null;
        return Map.of(
            "greeting", "Hello, " + (name == null ? "world" : name) + "!",
            "snapshots", snapshots,
            "restores", restores,
            "request", context.getAwsRequestId(),
            "in_time", context.getRemainingTimeInMillis() > 0);
    }
}
