-- How far each schedule of a function has got, as JSON, and whether it is paused. What it says, fn.toml has.
CREATE TABLE schedules (
    function_id BIGINT NOT NULL REFERENCES functions (id),
    name TEXT NOT NULL,
    is_paused BIGINT NOT NULL,
    progress TEXT NOT NULL,
    PRIMARY KEY (function_id, name)
);
