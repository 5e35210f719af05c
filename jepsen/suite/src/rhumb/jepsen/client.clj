(ns rhumb.jepsen.client
  "What the clients of all workloads share: a session over gRPC and TLS, and the outcome of operations."
  (:require [jepsen.client :as client]
            [jepsen.util :as util]
            [rhumb.jepsen.db :as db])
  (:import (io.rhumb.jepsen Change Failure Session Session$Inserted Value)))

(defprotocol Workload
  "The operations of one workload."
  (answer [this conn test op] "Carries out an operation, and returns its completion."))

(defn numbers!
  "Looks up the numbers of the table and of the regions, once for a test."
  [test ^Session session]
  (locking (:numbers test)
    (when-not (get @(:numbers test) ::table)
      (swap! (:numbers test) merge (into {} (.regions session))
             {::table (get (.tables session) db/table)}))
    @(:numbers test)))

(defn table [test] (int (get @(:numbers test) ::table)))
(defn region-number [test region] (int (get @(:numbers test) region)))

(def read-fs "Operations that change nothing, whose failures are therefore definite." #{:read :scan})

(defrecord Client [workload conn home]
  client/Client
  (open! [this test node]
    (let [session (Session. (db/address node) (int db/port) (db/credentials test))]
      (assoc this :conn session :home (db/region test node))))

  (setup! [this test]
    ; The first connection of a machine under load takes a while.
    (util/await-fn #(numbers! test conn) {:timeout 60000 :retry-interval 500 :log-interval 5000 :log-message "connects"})
    this)

  (invoke! [this test op]
    (try
      (numbers! test conn)
      (answer workload this test op)
      (catch Failure f
        (assoc op
               :type (if (or (.definite f) (read-fs (:f op)) (:reads-only op)) :fail :info)
               :error [(.kind f) (let [m (.getMessage f)] (subs m 0 (min 200 (count m))))]))))

  (teardown! [this test])

  (close! [this test] (.close ^Session conn))

  client/Reusable
  (reusable? [this test] true))

(defn client [workload] (->Client workload nil nil))

(defn get-all
  "Reads records of one region by name, in order."
  [c test region names]
  (.read ^Session (:conn c) (table test) (region-number test region) names))

(defn get-one ^Value [c test region name] (first (get-all c test region [name])))

(defn write! [c test region changes]
  (.write ^Session (:conn c) (region-number test region) changes))

(defn put ^Change [test name value] (Change/put (table test) name (str value)))

(defn insert! ^Session$Inserted [c test region value]
  (.insert ^Session (:conn c) (region-number test region) (Change/insert (table test) (str value))))

(defn scan-region
  "All records of the table in a region, range by range."
  [c test region]
  (let [n (region-number test region)]
    (mapcat (fn [[first last]] (.scan ^Session (:conn c) (table test) n (int first) (int last)))
            (map seq (.ranges ^Session (:conn c) (table test) n)))))

(defn text [^Value v] (.text v))
(defn record-name [^Value v] (.name v))

(defn home
  "The region of all records of a workload that has one home: the first one."
  [test]
  (first (db/regions test)))
