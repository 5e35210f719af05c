(ns rhumb.jepsen.workload.append
  "Transactions that read and append to lists in one range. The lists of a transaction are read together, and written in one batch on the
  condition that none has changed. Elle searches cycles, strictly serializable."
  (:require [clojure.string :as str]
            [jepsen.tests.cycle.append :as append]
            [rhumb.jepsen.client :as rc])
  (:import (io.rhumb.jepsen Change Failure)))

(defn- elements [v]
  (let [text (rc/text v)]
    ; A list that a transaction has read before anything was appended is stored as the empty text.
    (when-not (str/blank? text) (mapv parse-long (str/split text #" ")))))

(defn- apply-txn
  "Carries out micro-operations on lists by key, and returns the lists, the completed micro-operations and the keys that changed."
  [lists txn]
  (reduce (fn [[lists done changed] [f k v]]
            (case f
              :r [lists (conj done [f k (get lists k)]) changed]
              :append [(update lists k (fnil conj []) v) (conj done [f k v]) (conj changed k)]))
          [lists [] #{}] txn))

(defrecord Lists [used]
  rc/Workload
  (answer [_ c test {:keys [value] :as op}]
    (let [region (rc/home test)
          ks (vec (distinct (map second value)))
          names (mapv #(str "lists/" %) ks)
          _ (swap! used into ks)
          seen (try (zipmap ks (rc/get-all c test region names))
                    (catch Failure e e))]
      (if (instance? Failure seen)
        (assoc op :type :fail :error [(.kind ^Failure seen) :read])
        (let [[lists done changed] (apply-txn (update-vals seen elements) value)
              ; A list that was only read is written again as it was, so that the whole batch is decided at one moment.
              touched (when (seq changed) ks)]
          (when (seq touched)
            (rc/write! c test region
                       (mapv (fn [k] (.ifSame ^Change (rc/put test (str "lists/" k) (str/join " " (get lists k))) (get seen k)))
                             touched)))
          (assoc op :type :ok :value done))))))

(defn workload [opts]
  (let [used (atom (sorted-set))]
    (assoc (append/test {:key-count 8 :min-txn-length 1 :max-txn-length 3 :max-writes-per-key 64
                       :consistency-models [:strict-serializable]
                       :cycle-search-timeout 30000})
           :client (rc/client (->Lists used))
           :final-generator (delay (mapv (fn [k] {:f :txn :value [[:r k nil]]}) @used)))))
