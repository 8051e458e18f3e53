//! Functions call each other from host to host, in a cluster whose roles have certificates.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::cluster::{Role, Size};
use rekindle_e2e::s3::ObjectStore;
use rekindle_e2e::{Call, Cluster, Folder, hub};
use serde_json::{Value, json};

/// Calls the function that it is asked to, by a connection of its own.
const CALLER: &str = "import http.client, json\n\
    def handler(event, context):\n\
    \x20   host = event['rawPath'].strip('/') + '.fn.internal'\n\
    \x20   connection = http.client.HTTPConnection(host, 80, timeout=30)\n\
    \x20   connection.request('GET', '/')\n\
    \x20   answer = connection.getresponse()\n\
    \x20   return {'status': answer.status, 'said': json.loads(answer.read())}\n";

fn stock(whose: &str) -> Folder {
    let code = format!(
        "def handler(event, context):\n    return {{'whose': '{whose}', 'by': event['headers'].get('x-fn-caller')}}\n"
    );
    Folder::python("stock", "", &code)
}

#[test]
fn calls_go_through_any_gateway_also_after_the_caller_has_moved() {
    hub::enter();
    let store = ObjectStore::start_at(hub::ADDRESS);
    let size = Size {
        workers: 2,
        gateways: 2,
        guarded: true,
        ..Size::default()
    };
    let mut cluster = Cluster::start_sized(store.endpoint(), store.environment(), size);
    let made = cluster.cli(&["namespace", "create", "team"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for namespace in ["default", "team"] {
        for folder in [stock(namespace), Folder::python("caller", "", CALLER)] {
            let path = folder.path().to_str().unwrap();
            let output = cluster.cli(&["-n", namespace, "deploy", path]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let called = |cluster: &Cluster, caller: &str| -> Value { cluster.get(caller, "/stock").ok().json() };
    let by = |whose: &str| json!({"status": 200, "said": {"whose": whose, "by": "caller"}});
    assert_eq!(called(&cluster, "caller"), by("default"));
    assert_eq!(called(&cluster, "caller.team"), by("team"));
    let instance = cluster.instances_of("caller").remove(0);
    let moved = cluster.cli(&["migrate", instance.id.as_str()]);
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    assert_eq!(called(&cluster, "caller"), by("default"));
    assert_ne!(cluster.instances_of("caller").remove(0).worker, instance.worker);
    // The port of function calls is for members alone.
    let address = cluster.address(Role::Gateway).replace(":8080", ":8083");
    let refused = Call::get(&format!("http://{address}/")).try_send();
    assert!(refused.is_ok_and(|reply| reply.status == 400));
    // Of two gateways one is enough.
    cluster.kill9(Role::Gateway.nth(1));
    for _ in 0..4 {
        assert_eq!(called(&cluster, "caller"), by("default"));
    }
}
