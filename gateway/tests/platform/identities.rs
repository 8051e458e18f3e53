//! Callers without keys: holders of tokens that rules of access let in.

use rekindle_gateway::IdentityIssuers;
use rekindle_wire::ErrorCode;
use rekindle_wire::access::AccessRole;
use rekindle_wire::api::{AccessRule, AuditPage, AuthStatus, NewKey, RemovedRule};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::access::create;
use crate::harness::{KEY, Platform, error, until};
use crate::provider::{Key, Provider};

const MAIN: &str = "repo:org/x:ref:refs/heads/main";

async fn start(provider: &Provider) -> Platform {
    let identities = IdentityIssuers {
        issuers: vec![provider.address.parse().unwrap()],
        audiences: vec!["orders".to_owned()],
        login_client: Some("fn-cli".to_owned()),
    };
    let of_functions = provider.address.parse().unwrap();
    Platform::start_with(|config| {
        config.identities = identities;
        config.token_issuers = vec![of_functions];
    })
    .await
}

async fn call(platform: &Platform, shown: &str, method: Method, path: &str, body: Option<&Value>) -> Response {
    let call = platform.http.request(method, format!("{}{path}", platform.url));
    let call = call.bearer_auth(shown);
    match body {
        Some(body) => call.json(body),
        None => call,
    }
    .send()
    .await
    .unwrap()
}

fn rule(provider: &Provider, claims: &Value, role: AccessRole, namespace: Option<&str>) -> Value {
    let token = json!({ "issuer": provider.address, "claims": claims });
    json!({ "admits": { "token": token }, "role": role, "namespace": namespace })
}

async fn add(platform: &Platform, rule: &Value) -> AccessRule {
    let added = call(platform, KEY, Method::POST, "/v1/access", Some(rule)).await;
    assert_eq!(added.status(), 200, "{rule}");
    added.json().await.unwrap()
}

async fn code(answer: Response) -> ErrorCode {
    error(answer).await.code
}

#[tokio::test]
async fn a_machine_s_token_has_the_roles_of_its_rules_until_they_are_removed() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let mut platform = start(&provider).await;
    call(&platform, KEY, Method::PUT, "/v1/namespaces/team", None).await;
    let signed = |changes: Value| key.sign(&provider.claims(&changes));
    let main = signed(json!({ "sub": MAIN, "ref": "refs/heads/main" }));
    let branch = signed(json!({ "sub": "repo:org/x:ref:refs/heads/other", "ref": "refs/heads/other" }));
    let list = "/v1/namespaces/team/functions";

    let before = call(&platform, &main, Method::GET, list, None).await;
    let before = error(before).await;
    assert_eq!(before.code, ErrorCode::Unauthorized);
    assert!(before.message.contains(&format!("'sub={MAIN}'")), "{before}");
    let deployer = add(
        &platform,
        &rule(&provider, &json!({ "sub": MAIN }), AccessRole::Deployer, Some("team")),
    )
    .await;
    assert_eq!(call(&platform, &main, Method::GET, list, None).await.status(), 200);
    let alias = format!("{list}/none/aliases/next");
    let body = json!({ "targets": [{ "version": 1, "weight": 1 }] });
    let made = call(&platform, &main, Method::PUT, &alias, Some(&body)).await;
    assert_eq!(code(made).await, ErrorCode::FunctionNotFound);
    let elsewhere = call(&platform, &main, Method::GET, "/v1/functions", None).await;
    let elsewhere = error(elsewhere).await;
    assert_eq!(elsewhere.code, ErrorCode::Forbidden);
    assert!(
        elsewhere.message.contains("`fn access add --role reader -n default`"),
        "{elsewhere}"
    );
    assert_eq!(
        code(call(&platform, &branch, Method::GET, list, None).await).await,
        ErrorCode::Unauthorized
    );
    let forged = Key::new("one").sign(&provider.claims(&json!({ "sub": MAIN })));
    for wrong in [
        &forged,
        &signed(json!({ "sub": MAIN, "exp": 1 })),
        &signed(json!({ "sub": MAIN, "aud": "shop" })),
        &signed(json!({ "sub": MAIN, "iss": "https://other.example" })),
    ] {
        let refused = call(&platform, wrong, Method::GET, list, None).await;
        assert_eq!(code(refused).await, ErrorCode::Unauthorized);
    }

    // Another rule adds to it, with other claims and elsewhere.
    let on_main = json!({ "ref": "refs/heads/main" });
    let reader = add(
        &platform,
        &rule(&provider, &on_main, AccessRole::Reader, Some("default")),
    )
    .await;
    assert_eq!(
        call(&platform, &main, Method::GET, "/v1/functions", None)
            .await
            .status(),
        200
    );
    assert_eq!(call(&platform, &main, Method::GET, list, None).await.status(), 200);
    let whoami = call(&platform, &main, Method::GET, "/v1/auth", None).await;
    let whoami: AuthStatus = whoami.json().await.unwrap();
    assert_eq!(whoami.login.unwrap().client_id, "fn-cli");
    let caller = whoami.caller.unwrap();
    assert_eq!(caller.name, format!("oidc:{MAIN}@{}", provider.address));
    assert_eq!(caller.grants.len(), 2);

    // One goes at once, and another is there after a restart.
    let path = format!("/v1/access/{}", deployer.id);
    let removed: RemovedRule = call(&platform, KEY, Method::DELETE, &path, None)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(removed.id, deployer.id);
    assert_eq!(
        code(call(&platform, &main, Method::GET, list, None).await).await,
        ErrorCode::Forbidden
    );
    platform.restart_scheduler().await;
    let rules = call(&platform, KEY, Method::GET, "/v1/access", None).await;
    let rules: Vec<AccessRule> = rules.json().await.unwrap();
    assert_eq!(rules.iter().map(|rule| &rule.id).collect::<Vec<_>>(), [&reader.id]);

    until("the gateway knows the new lead's rules", async || {
        call(&platform, &main, Method::GET, "/v1/functions", None)
            .await
            .status()
            == 200
    })
    .await;
    assert_eq!(
        code(call(&platform, &main, Method::GET, list, None).await).await,
        ErrorCode::Forbidden
    );

    let log = call(&platform, KEY, Method::GET, "/v1/audit", None).await;
    let log: AuditPage = log.json().await.unwrap();
    let told: Vec<_> = log
        .entries
        .iter()
        .map(|e| format!("{} {} {} {}", e.actor, e.action, e.object, e.outcome))
        .collect();
    for expected in [
        format!(
            "admin add_rule {} deployer *.team sub={MAIN} at {} ok",
            deployer.id, provider.address
        ),
        format!(
            "oidc:{MAIN}@{} set_alias none/next function_not_found",
            provider.address
        ),
        format!("admin remove_rule {} ok", deployer.id),
    ] {
        assert!(told.contains(&expected), "{expected}: {told:#?}");
    }
    assert_eq!(provider.fetches(), 1, "keys are kept");
}

#[tokio::test]
async fn a_rule_gives_no_more_than_its_author_has_and_lets_nobody_in_by_accident() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    call(&platform, KEY, Method::PUT, "/v1/namespaces/team", None).await;
    let of_team = create(&platform, AccessRole::Admin, "*.team").await;
    let ops = json!({ "groups": "ops" });
    let post = async |shown: &str, body: &Value| call(&platform, shown, Method::POST, "/v1/access", Some(body)).await;
    let wide = rule(&provider, &ops, AccessRole::Reader, None);
    assert_eq!(code(post(&of_team.key, &wide).await).await, ErrorCode::Forbidden);
    let nowhere = rule(&provider, &ops, AccessRole::Reader, Some("nowhere"));
    assert_eq!(code(post(KEY, &nowhere).await).await, ErrorCode::NamespaceNotFound);
    for claims in [json!({}), json!({ "aud": "orders" }), json!({ "sub": "" })] {
        let refused = post(KEY, &rule(&provider, &claims, AccessRole::Reader, None)).await;
        assert_eq!(code(refused).await, ErrorCode::BadRequest, "{claims}");
    }
    let own = post(&of_team.key, &rule(&provider, &ops, AccessRole::Admin, Some("team"))).await;
    let own: AccessRule = own.json().await.unwrap();
    assert_eq!(own.created_by, of_team.summary.id.as_str());

    // Who is admitted by it may make keys there, and nowhere else.
    let token = key.sign(&provider.claims(&json!({ "sub": "ada", "groups": ["dev", "ops"] })));
    let wanted = json!({ "role": "deployer", "namespace": "team" });
    let made = call(&platform, &token, Method::POST, "/v1/keys", Some(&wanted)).await;
    let made: NewKey = made.json().await.unwrap();
    assert_eq!(made.summary.created_by, format!("oidc:ada@{}", provider.address));
    let wanted = json!({ "role": "reader" });
    let refused = call(&platform, &token, Method::POST, "/v1/keys", Some(&wanted)).await;
    assert_eq!(code(refused).await, ErrorCode::Forbidden);

    // A namespace's rules go with it.
    assert_eq!(
        call(&platform, KEY, Method::DELETE, "/v1/namespaces/team", None)
            .await
            .status(),
        204
    );
    let gone = call(&platform, &token, Method::GET, "/v1/namespaces/team/functions", None).await;
    assert_eq!(code(gone).await, ErrorCode::Unauthorized);
}

#[tokio::test]
async fn what_one_namespace_s_rules_say_of_somebody_changes_nothing_elsewhere() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    for name in ["team", "evil"] {
        call(&platform, KEY, Method::PUT, &format!("/v1/namespaces/{name}"), None).await;
    }
    let eve = create(&platform, AccessRole::Admin, "*.evil").await;
    let is_ada = json!({ "sub": "ada" });
    let by_eve = async |rule: &Value| {
        let added = call(&platform, &eve.key, Method::POST, "/v1/access", Some(rule)).await;
        assert_eq!(added.status(), 200);
    };
    // Older rules than Ada's own, for functions that need not be there; one ends soon.
    for n in 0..20 {
        let mut of_function = rule(&provider, &is_ada, AccessRole::Admin, Some("evil"));
        of_function["function"] = format!("f{n}").into();
        of_function["expires_s"] = 60.into();
        by_eve(&of_function).await;
    }
    let own = rule(&provider, &is_ada, AccessRole::Admin, Some("team"));
    add(&platform, &own).await;
    let ada = key.sign(&provider.claims(&is_ada));
    let functions = "/v1/namespaces/team/functions";
    assert_eq!(call(&platform, &ada, Method::GET, functions, None).await.status(), 200);
    let of_team = json!({ "role": "reader", "namespace": "team" });
    let made = call(&platform, &ada, Method::POST, "/v1/keys", Some(&of_team)).await;
    let made: NewKey = made.json().await.unwrap();
    assert_eq!(made.summary.expires_unix_s, None, "no rule that lets her make it ends");
    let entries = async |path: &str| {
        let page: AuditPage = call(&platform, &ada, Method::GET, path, None)
            .await
            .json()
            .await
            .unwrap();
        let all = page
            .entries
            .into_iter()
            .map(|entry| entry.namespace.unwrap().to_string());
        all.collect::<Vec<_>>()
    };
    assert!(entries("/v1/audit").await.iter().all(|namespace| namespace == "team"));
    by_eve(&rule(&provider, &is_ada, AccessRole::Admin, Some("evil"))).await;
    let unclear = error(call(&platform, &ada, Method::GET, "/v1/audit", None).await).await;
    assert_eq!(unclear.code, ErrorCode::BadRequest);
    assert!(unclear.message.contains("fn audit --of"), "{unclear}");
    let of_team_alone = entries("/v1/audit?of=team").await;
    assert!(!of_team_alone.is_empty() && of_team_alone.iter().all(|namespace| namespace == "team"));

    // Who is an admin there makes no keys here that outlast what somebody gave here.
    let is_bob = json!({ "sub": "bob" });
    by_eve(&rule(&provider, &is_bob, AccessRole::Admin, Some("evil"))).await;
    add(&platform, &rule(&provider, &is_bob, AccessRole::Reader, Some("team"))).await;
    let bob = key.sign(&provider.claims(&is_bob));
    let refused = call(&platform, &bob, Method::POST, "/v1/keys", Some(&of_team)).await;
    assert_eq!(code(refused).await, ErrorCode::Forbidden);
    let mut for_others = rule(&provider, &json!({ "sub": "eve" }), AccessRole::Reader, Some("team"));
    let refused = call(&platform, &bob, Method::POST, "/v1/access", Some(&for_others)).await;
    assert_eq!(code(refused).await, ErrorCode::Forbidden);
    for_others["namespace"] = "evil".into();
    let added = call(&platform, &bob, Method::POST, "/v1/access", Some(&for_others)).await;
    assert_eq!(added.status(), 200);
}

#[tokio::test]
async fn functions_are_invoked_with_such_a_token_which_they_do_not_learn_unless_it_is_theirs() {
    let key = Key::new("one");
    let provider = Provider::start(&[&key]).await;
    let platform = start(&provider).await;
    platform.deploy("keyed", "auth = \"key\"\n").await;
    let jwt = format!(
        "auth = \"jwt\"\n[jwt]\nissuer = \"{}\"\naudience = \"orders\"\nclaims = {{ scope = \"write\" }}\n",
        provider.address
    );
    platform.deploy("asks", &jwt).await;
    let ada = key.sign(&provider.claims(&json!({ "sub": "ada" })));
    let eve = key.sign(&provider.claims(&json!({ "sub": "eve", "scope": "read" })));
    let status = async |name: &str, token: &str| {
        let call = platform.function(name).bearer_auth(token);
        call.send().await.unwrap().status().as_u16()
    };
    assert_eq!((status("keyed", &ada).await, status("asks", &ada).await), (401, 200));
    assert_eq!(status("asks", &eve).await, 403);
    add(
        &platform,
        &rule(&provider, &json!({ "sub": "ada" }), AccessRole::Invoker, None),
    )
    .await;
    add(
        &platform,
        &rule(&provider, &json!({ "sub": "eve" }), AccessRole::Reader, None),
    )
    .await;
    assert_eq!((status("keyed", &ada).await, status("asks", &ada).await), (200, 200));
    assert_eq!((status("keyed", &eve).await, status("asks", &eve).await), (403, 403));
    let later = platform.http.post(format!("{}/async-function/keyed", platform.url));
    assert_eq!(later.bearer_auth(&ada).send().await.unwrap().status(), 202);
}
