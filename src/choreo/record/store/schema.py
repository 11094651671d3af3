"""The tables of the store, version by version, and two views that join them.

The version of a store is in SQLite's `user_version`. Opening an older store runs the scripts that it lacks, in one
transaction. A released script is never changed; a change is a new script.
"""

from __future__ import annotations

__all__ = ["APPLICATION", "MIGRATIONS", "TABLES", "VERSION", "VIEWS"]

APPLICATION = 0x43484F52  # "CHOR" in SQLite's application_id

FIRST = """
create table machine (
    id text primary key,           -- the fingerprint
    cpu text, cores integer, memory_bytes integer, kernel text, accelerator text
) strict;
create table run (
    id integer primary key autoincrement,
    verb text not null,
    argv text not null,            -- JSON
    began text not null,           -- UTC, ISO 8601
    ended text,                    -- none: it is running, or it crashed
    status text not null,          -- running, done, failed, interrupted
    version text not null, "commit" text, dirty integer,
    machine text not null references machine, host text, pid integer,
    sweep text                     -- the hash of a sweep's tasks
) strict;
create table constants (
    id integer primary key autoincrement,
    hash text not null unique, kind text not null,
    content text not null          -- JSON
) strict;
create table case_ (
    id integer primary key autoincrement,
    hash text not null unique,
    collective text, algorithm text, ranks integer, size_bytes integer, topology text, root integer, axes text,
    library text, model text, plan text, global_batch integer, seq integer, precision text, software text, device text,
    options text                   -- JSON: whatever else makes it another case
) strict;
create table prediction (
    id integer primary key autoincrement,
    case_ integer not null references case_, run integer not null references run,
    source text not null,          -- price, simulate, packets, bound, nccl, plan
    time_s real not null, memory_bytes real,
    terms text,                    -- JSON
    constants integer references constants,
    code text not null             -- the hash of the code that made it
) strict;
create unique index prediction_once on prediction (case_, source, coalesce(constants, 0), code);
create table measurement (
    id integer primary key autoincrement,
    case_ integer not null references case_, run integer not null references run,
    sample integer not null, time_s real not null,
    datatype text, op text, in_place integer, wrong integer
) strict;
create index measurement_of_case on measurement (case_, run);
create table task (
    id integer primary key autoincrement,
    hash text not null, code text not null, run integer not null references run,
    row_ text not null             -- JSON: the row of a sweep's table
) strict;
create index task_by_hash on task (hash, code);
create table artifact (
    id integer primary key autoincrement,
    run integer not null references run,
    path text not null, bytes integer not null, sha256 text not null
) strict;
"""
MIGRATIONS = (FIRST,)
VERSION = len(MIGRATIONS)

# Tables with an id only grow, so they are loaded from where the last load ended; the others are loaded whole.
TABLES = ("machine", "run", "constants", "case_", "prediction", "measurement", "task", "artifact")

CASE = (
    "c.collective, c.algorithm, c.ranks, c.size_bytes, c.topology, c.root, c.axes, c.library, c.model, c.plan, "
    "c.global_batch, c.seq, c.precision, c.software, c.device, c.options"
)
RUN = 'r.id as run, r.verb, r.began, r.version, r."commit", r.dirty, r.host, r.machine, m.cpu, m.accelerator'

# The same text is SQL of SQLite and of DuckDB.
VIEWS = {
    # A row for each prediction and each sample.
    "result": f"""
select 'predicted' as kind, p.source, c.hash as case_, {CASE}, p.time_s, p.memory_bytes, null as sample,
       null as datatype, null as op, null as in_place, null as wrong, {RUN}
from prediction p join case_ c on c.id = p.case_ join run r on r.id = p.run join machine m on m.id = r.machine
union all
select 'measured' as kind, 'measured' as source, c.hash as case_, {CASE}, s.time_s, null as memory_bytes, s.sample,
       s.datatype, s.op, s.in_place, s.wrong, {RUN}
from measurement s join case_ c on c.id = s.case_ join run r on r.id = s.run join machine m on m.id = r.machine""",
    # Predicted beside measured: a row for each case, kind of prediction and machine; measured_s is the median.
    "compared": f"""
with ordered as (
    select s.case_, r.machine, s.time_s,
           row_number() over (partition by s.case_, r.machine order by s.time_s) as place,
           count(*) over (partition by s.case_, r.machine) as samples
    from measurement s join run r on r.id = s.run
), middle as (
    select case_, machine, avg(time_s) as measured_s, max(samples) as samples
    from ordered where 2 * place between samples and samples + 2 group by case_, machine
), latest as (
    select case_, source, time_s, memory_bytes, constants,
           row_number() over (partition by case_, source order by id desc) as age
    from prediction
)
select c.hash as case_, {CASE}, p.source, p.time_s as predicted_s, n.measured_s, p.time_s / n.measured_s as ratio,
       n.samples, n.machine, m.cpu, m.accelerator
from latest p join middle n on n.case_ = p.case_ join case_ c on c.id = p.case_ join machine m on m.id = n.machine
where p.age = 1 and n.measured_s > 0""",
}
