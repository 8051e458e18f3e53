-- Which versions of a function each alias names, with their weights. `live` is what the function's plain URL serves: so
-- far, the newest version that could.
CREATE TABLE aliases (
    function_id BIGINT NOT NULL REFERENCES functions (id),
    name TEXT NOT NULL,
    number BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    PRIMARY KEY (function_id, name, number)
);
INSERT INTO aliases (function_id, name, number, weight)
    SELECT function_id, 'live', MAX(number), 100 FROM versions WHERE state = 'live' GROUP BY function_id;

-- In which order a function's versions came to serve; 0 of those that never did.
ALTER TABLE versions ADD COLUMN served BIGINT NOT NULL DEFAULT 0;
UPDATE versions SET served = number WHERE state = 'live';
