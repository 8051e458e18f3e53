"""Joins a table of DuckDB with a data frame of pandas, and pivots the result in pandas."""

import duckdb
import pandas

stations = pandas.DataFrame({"station": range(20), "region": [f"region {n // 5}" for n in range(20)]})
database = duckdb.connect("/tmp/weather.duckdb")
database.execute("""
    CREATE TABLE readings AS
    SELECT n % 20 AS station, n % 12 + 1 AS month, (n * 37 % 400) / 10.0 AS celsius FROM range(500000) AS t(n)
""")


def handler(event, context):
    means = database.execute("""
        SELECT region, month, round(avg(celsius), 3) AS mean, count(*) AS readings
        FROM readings JOIN stations USING (station) GROUP BY ALL ORDER BY ALL
    """).df()
    table = means.pivot(index="region", columns="month", values="mean")
    return {"readings": int(means["readings"].sum()), "means": table.round(3).to_dict(orient="index")}
