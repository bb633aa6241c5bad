"""The gatekeeper: stamps every write, admits every read, keeps the lineage, holds back contamination. Imports `bus`, nothing
imports it but `cli`.
"""
