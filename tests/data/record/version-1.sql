BEGIN TRANSACTION;
CREATE TABLE artifact (
    id integer primary key autoincrement,
    run integer not null references run,
    path text not null, bytes integer not null, sha256 text not null
) strict;
CREATE TABLE case_ (
    id integer primary key autoincrement,
    hash text not null unique,
    collective text, algorithm text, ranks integer, size_bytes integer, topology text, root integer, axes text,
    library text, model text, plan text, global_batch integer, seq integer, precision text, software text, device text,
    options text                   -- JSON: whatever else makes it another case
) strict;
INSERT INTO "case_" VALUES(1,'aa','all_reduce','ring',2,8,'this-machine',NULL,NULL,'choreo',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "case_" VALUES(2,'bb','all_reduce',NULL,16,1048576,'hgx-h100:2',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE constants (
    id integer primary key autoincrement,
    hash text not null unique, kind text not null,
    content text not null          -- JSON
) strict;
INSERT INTO "constants" VALUES(1,'00','cost model','{"alpha_s":5e-06}');
CREATE TABLE machine (
    id text primary key,           -- the fingerprint
    cpu text, cores integer, memory_bytes integer, kernel text, accelerator text
) strict;
INSERT INTO "machine" VALUES('84a96196578c7a3b','EPYC',2,8589934592,'Linux 6.1','');
CREATE TABLE measurement (
    id integer primary key autoincrement,
    case_ integer not null references case_, run integer not null references run,
    sample integer not null, time_s real not null,
    datatype text, op text, in_place integer, wrong integer
) strict;
INSERT INTO "measurement" VALUES(1,1,1,0,1.0e-06,'float','sum',NULL,NULL);
INSERT INTO "measurement" VALUES(2,1,1,1,2.0e-06,'float','sum',NULL,NULL);
INSERT INTO "measurement" VALUES(3,1,1,2,9.0e-06,'float','sum',NULL,NULL);
CREATE TABLE prediction (
    id integer primary key autoincrement,
    case_ integer not null references case_, run integer not null references run,
    source text not null,          -- price, simulate, packets, bound, nccl, plan
    time_s real not null, memory_bytes real,
    terms text,                    -- JSON
    constants integer references constants,
    code text not null             -- the hash of the code that made it
) strict;
INSERT INTO "prediction" VALUES(1,1,1,'price',1.0e-06,NULL,'{"alpha_s":1e-6}',1,'cc');
INSERT INTO "prediction" VALUES(2,2,1,'bound',3.3e-06,NULL,NULL,NULL,'cc');
CREATE TABLE run (
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
INSERT INTO "run" VALUES(1,'bench','["bench","all_reduce"]','2026-11-16T02:00:00.000000Z','2026-11-16T02:00:01.000000Z','done','0.1.0','f90e40286964ead9b4415d167f12bc00043e0065',0,'84a96196578c7a3b','node',7,NULL);
CREATE TABLE task (
    id integer primary key autoincrement,
    hash text not null, code text not null, run integer not null references run,
    row_ text not null             -- JSON: the row of a sweep's table
) strict;
CREATE UNIQUE INDEX prediction_once on prediction (case_, source, coalesce(constants, 0), code);
CREATE INDEX measurement_of_case on measurement (case_, run);
CREATE INDEX task_by_hash on task (hash, code);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run',1);
INSERT INTO "sqlite_sequence" VALUES('constants',1);
INSERT INTO "sqlite_sequence" VALUES('case_',2);
INSERT INTO "sqlite_sequence" VALUES('prediction',2);
INSERT INTO "sqlite_sequence" VALUES('measurement',3);
COMMIT;
pragma user_version = 1;
pragma application_id = 1128812370;
